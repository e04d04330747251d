// The control plane. Everything here is off the data path: a training step makes no call.
// ARCHITECTURE.md, "The life of a job", says when each is called.
namespace cpp leeway.rpc

enum Role { SERVER = 1, WORKER = 2 }

// A call that will not succeed by itself. `retryable`: the same call may succeed later.
exception Refused {
  1: string code,     // as common/result.h prints it
  2: string message,  // one line: who, what, why, remedy
  3: bool retryable,
}

// Where a member's data plane listens.
struct FabricAddress {
  1: string fabric, 2: string provider, 3: string device, 4: string printable, 5: binary address,
}

struct Caller { 1: string token, 2: Role role, 3: i32 id, 4: i64 incarnation }

struct RegisterRequest {
  1: string token,
  2: Role role,
  3: i32 id,            // rank or server number; -1: a worker that takes any free place
  4: string host,
  5: i64 pid,
  6: FabricAddress fabric,
}

struct Registration {
  1: i64 incarnation,
  2: i64 job,                      // random number of this run of the job; goes into every message
  3: map<string, string> settings, // JobSettings, complete
  4: string checkpoint_dir,        // "" = none
  5: i32 servers, 6: i32 workers,  // how many the job has room for
  7: i32 id,                       // that it has now
}

struct TensorSpec { 1: string name, 2: list<i64> shape }

// What a training program needs of the servers. Every worker of a job must say the same, in any
// order; `settings` are the program's own values for job settings (learning_rate, ...), used where
// the person who started the job did not set them.
struct Model { 1: list<TensorSpec> tensors, 2: map<string, string> settings }

struct Partition {
  1: i32 id,        // its place in Plan.partitions
  2: i32 tensor,    // index into Plan.tensors
  3: i64 first,     // first element
  4: i64 elements,
  5: i32 server,
}

struct WorkerProgress {
  1: i64 clock,               // steps done
  2: binary state,            // what it gave with its last commit
  3: bool residual,           // the checkpoint holds its residual (gradient_codec = topk)
}

// The model as it lies on the servers. Fixed for a run of the job.
struct Plan {
  1: list<TensorSpec> tensors,        // in name order
  2: list<Partition> partitions,      // in tensor order, then by begin
  3: map<string, string> settings,    // effective
  4: string restore,                  // checkpoint id, "" = from the initial values
  // Where each worker begins, when not at clock 0: restored, or (in its own plan) joined later.
  5: map<i32, WorkerProgress> progress,
}

enum Phase {
  GATHERING = 1,  // members register, workers declare
  PLANNED = 2,    // the plan is there; servers allocate or restore
  RUNNING = 3,    // every server is ready; workers train
  STOPPING = 4,   // begin_step returns false; workers finish. With a checkpoint directory the last
                  // checkpoint was taken before, while all still ran: a cut that a resume repeats
  DONE = 5,       // every member exits 0
  FAILED = 6,     // every member exits non-zero; reason says why
}

enum MemberState {
  LIVE = 1,
  RESOLVING = 2,  // declared dead; servers report what they have of its last step
  DEAD = 3,       // final_clock says how many of its steps count, on every server
  FINISHED = 4,   // did all its steps
  JOINING = 5,    // came while the job trains; servers report from which clock on it may count
}

struct Member {
  1: i32 id, 2: i64 incarnation, 3: MemberState state, 4: FabricAddress fabric,
  5: i64 final_clock,  // DEAD and FINISHED workers
  6: double final_factor = 1,  // DEAD workers: by what the last of these steps is multiplied
  7: i64 final_samples = 1,    // DEAD workers: that it has
  8: i64 first_clock,          // LIVE and later: its first step here
}

// A checkpoint in the making. HOLD: servers stop applying at a step boundary and report how far each
// worker's steps are applied. CUT: `clocks` is the largest of the reports; servers apply up to it,
// snapshot, go on, and write in the background.
// Workers that keep a residual are to be asked first, since what it was at a step that is done is not
// known any more: PAUSE: each stops between two steps, with `clocks` before that one, and stays until
// CUT, where the clocks are those at which they stopped; then it keeps its residual and goes on.
enum CheckpointStage { NONE = 0, HOLD = 1, CUT = 2, PAUSE = 3 }
struct CheckpointOrder { 1: CheckpointStage stage, 2: string id, 3: map<i32, i64> clocks }

struct View {
  1: i64 epoch,          // grows with every change below
  2: Phase phase,
  3: string reason,      // FAILED, STOPPING
  4: list<Member> servers,
  5: list<Member> workers,
  6: CheckpointOrder checkpoint,
  7: map<string, string> settings, // changed while running (the learning rate and its schedule)
  8: i32 initializer,    // the worker that pushes the initial values; -1 when restored or done
  9: bool paused,        // fewer workers than min_workers: no weights until one joins
}

// A residual that a worker has on disk, or why it has not.
struct KeptResidual { 1: string digest, 2: i64 bytes, 3: string error }

// What a worker says of itself with each heartbeat; all counts since its start.
struct WorkerReport {
  1: i64 clock, 2: i64 samples, 3: i64 skipped_steps,
  4: double loss, 5: double epoch,
  6: i64 bytes_pushed, 7: i64 bytes_pulled,
  8: list<i64> staleness_histogram, 9: i64 staleness_violations,
  10: double loss_scale,
  11: double seconds_waiting,     // in begin_step, for weights
  12: double seconds_loading,     // for the data loader
  13: map<string, double> metrics, // the program's own (test_accuracy)
  14: string paused,              // the checkpoint for which it stands still at `clock`
  15: map<string, KeptResidual> residuals, // by checkpoint; by "end-INCARNATION" the last of all
}

struct ServerReport {
  1: bool ready,                    // plan carried out: memory there, restored, peers known
  2: map<i32, i64> applied,         // worker -> steps applied
  3: map<i32, i64> resolving,       // RESOLVING worker -> steps that it committed here (a last
                                    // step that it abandoned is not counted)
  4: i64 epoch,                     // the view that this server acts on
  5: string held,                   // checkpoint id at which it holds; `applied` is exact then
  6: string durable,                // checkpoint id that it has on disk
  7: string checkpoint_error,       // why it could not write `held`
  8: i64 updates, 9: i64 bytes_read, 10: i64 bytes_written,
  11: i64 memory_bytes, 12: i64 shard_elements,
  13: string waiting,               // who waits for whom, on what; "" when nobody does
  14: string shard_digest,          // of `durable`: one hash over its records
  15: i64 durable_bytes,
  17: i64 durable_updates,          // of `durable`: how many updates each partition has had
  18: map<i32, double> last_factors, // RESOLVING worker -> factor of the last step that it committed
  19: map<i32, i64> last_samples,    // and its samples
  20: map<i32, i64> joining,         // JOINING worker -> no clock from this one on is applied
                                    // without it; -1: there is no memory for it, or no way to it
  16: map<i32, binary> worker_states, // in `durable`: what each worker gave with its last step there
}

struct MemberStatus {
  1: i32 id, 2: string role, 3: string state, 4: string host, 5: i64 pid,
  6: FabricAddress fabric, 7: i64 incarnation, 8: double seconds_since_heartbeat,
  9: optional WorkerReport worker, 10: optional ServerReport server,
  11: double samples_per_second, 12: double push_bytes_per_second, 13: double pull_bytes_per_second,
  14: string error,   // what it said when it left with an error
  15: i64 first_clock,
}

struct CheckpointInfo {
  1: string id, 2: i64 created_unix_s, 3: map<i32, i64> clocks, 4: i64 bytes, 5: i32 servers,
}

struct JobStatus {
  1: i64 job, 2: i64 epoch, 3: string phase, 4: string reason, 5: double seconds_running,
  6: list<MemberStatus> servers, 7: list<MemberStatus> workers,
  8: map<string, string> settings,
  9: optional CheckpointInfo last_checkpoint,
  10: i64 samples, 11: double samples_per_second,
  12: WorkerReport replaced, // workers whose place another has now, together; clock: steps done
  13: i32 places,            // for workers
}

struct TensorStatus {
  1: string name, 2: list<i64> shape, 3: i64 elements, 4: list<i32> servers, 5: i32 partitions,
}

service Scheduler {
  Registration join(1: RegisterRequest request) throws (1: Refused refused),
  void declare_model(1: Caller who, 2: Model model) throws (1: Refused refused),
  // The heartbeat and the way news travels: returns at once when the view is newer than `epoch`,
  // else when it becomes newer or after `wait_ms`.
  View watch_worker(1: Caller who, 2: i64 epoch, 3: i32 wait_ms, 4: WorkerReport report)
      throws (1: Refused refused),
  View watch_server(1: Caller who, 2: i64 epoch, 3: i32 wait_ms, 4: ServerReport report)
      throws (1: Refused refused),
  Plan plan(1: Caller who) throws (1: Refused refused),
  // A worker has done all its steps, every one of them committed on every server.
  void finish(1: Caller who, 2: WorkerReport report) throws (1: Refused refused),
  // A member gives up; fails the job.
  void fault(1: Caller who, 2: string reason) throws (1: Refused refused),
  // The launcher saw a process end by a signal: no need to wait for the timeout.
  // `fails_job`: it ended by a fault of its own, so the job must not go on without it.
  void lost(1: string token, 2: Role role, 3: i32 id, 4: string why, 5: bool fails_job)
      throws (1: Refused refused),

  // For people.
  JobStatus status() throws (1: Refused refused),
  list<TensorStatus> tensors() throws (1: Refused refused),
  list<CheckpointInfo> checkpoints() throws (1: Refused refused),
  string checkpoint(1: string token) throws (1: Refused refused),  // waits for the commit: its id
  void change(1: string token, 2: string key, 3: string value) throws (1: Refused refused),
  // Graceful: checkpoint (where there is a directory), then STOPPING, then DONE. In DONE or FAILED it
  // lets the scheduler exit at once; it would linger ten seconds else, for those who ask what happened.
  void stop(1: string token, 2: string reason) throws (1: Refused refused),
}
