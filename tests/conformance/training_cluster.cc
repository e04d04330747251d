#include "tests/conformance/training_cluster.h"

#include <cstring>

#include "common/half.h"
#include "kernels/cast.h"
#include "kernels/emulation/emulated_kernels.h"
#include "scheduler_types.h"  // generated
#include "tests/unit/worker/fake_gpu_backend.h"
#include "worker/device_gradients.h"

namespace leeway::conformance {
namespace {

constexpr std::uint64_t kJob = 0x5701;
constexpr std::int64_t kPartition = 300;
constexpr std::chrono::seconds kPatience{20};

// The CUDA kernels, emulated; under the thread sanitizer, to which each of their threads is one,
// the host's.
std::unique_ptr<kernels::Backend> open_kernels() {
#if defined(__SANITIZE_THREAD__)
  return kernels::open_cpu_backend();
#else
  return kernels::open_emulated_backend();
#endif
}

float loss_scale(std::uint64_t step) { return static_cast<float>(1u << step % 4); }

}  // namespace

struct TrainingCluster::Worker {
  std::size_t rank = 0;
  worker::Board board;
  worker::Layout layout;
  std::unique_ptr<worker::testing::FakeGpuBackend> backend;  // with GPUs, as the rest
  std::shared_ptr<transport::Gpu> gpu;
  std::unique_ptr<worker::DataPlane> data;
  std::unique_ptr<worker::DeviceGradients> gradients;
  std::unique_ptr<worker::HostGradients> host_gradients;  // without GPUs
  kernels::Buffer computed;                               // FP32, on the device
};

TrainingCluster::TrainingCluster(const TrainingOptions& options) : options_(options) {
  settings_.update.value = options.per_clock ? "per_clock" : "per_push";
  settings_.staleness.value = options.staleness;
  settings_.optimizer.value = "sgd";
  settings_.learning_rate = 1;
  settings_.pull_dtype.value = to_string(options.pull);
  settings_.gradient_codec.value = options.codec;
  settings_.topk_fraction = 1.0 / 3;
  plan();
}

TrainingCluster::~TrainingCluster() {
  for (auto& worker : workers_)
    if (worker->gpu) static_cast<void>(worker->gpu->synchronize());
  workers_.clear();
  engines_.clear();
}

void TrainingCluster::plan() {
  rpc::Plan plan;
  std::vector<worker::Declared> declared;
  std::vector<server::EngineConfig::Tensor> tensors;
  for (const std::int64_t size : kTensors) {
    const std::string name(1, static_cast<char>('a' + tensors.size()));
    rpc::TensorSpec tensor;
    tensor.name = name;
    tensor.shape = {size};
    for (std::int64_t first = 0; first < size; first += kPartition) {
      rpc::Partition partition;
      partition.id = static_cast<std::int32_t>(plan.partitions.size());
      partition.tensor = static_cast<std::int32_t>(plan.tensors.size());
      partition.first = first;
      partition.elements = std::min(kPartition, size - first);
      partition.server = partition.id % static_cast<std::int32_t>(options_.servers);
      plan.partitions.push_back(partition);
    }
    plan.tensors.push_back(tensor);
    declared.push_back({name, {size}, static_cast<std::size_t>(size)});
    tensors.push_back({name, {size}});
  }

  server::EngineView view{.epoch = 1, .initializer = WorkerId(0), .settings = settings_};
  std::map<WorkerId, server::CoreConfig::Worker> known;
  for (std::uint32_t w = 0; w < options_.workers; ++w) {
    auto worker = std::make_unique<Worker>();
    worker->rank = w;
    worker->data = std::make_unique<worker::DataPlane>(options_.open(), worker->board);
    worker->layout =
        value_or_throw(worker::Layout::make(plan, declared, options_.servers, settings_));
    known[WorkerId(w)] = {Incarnation(10 + w), Clock(0), {}};
    view.workers.push_back(
        {{WorkerId(w), Incarnation(10 + w), server::WorkerPhase::kLive, Clock(0)},
         worker->data->info().address});
    workers_.push_back(std::move(worker));
  }
  elements_ = workers_[0]->layout.elements();
  std::vector<worker::DataPlane::Server> servers;
  for (std::uint32_t s = 0; s < options_.servers; ++s) {
    server::EngineConfig config{.server = ServerId(s),
                                .incarnation = Incarnation(70 + s),
                                .job = kJob,
                                .settings = settings_,
                                .servers = static_cast<std::uint32_t>(options_.servers),
                                .tensors = tensors,
                                .workers = known};
    for (const rpc::Partition& partition : plan.partitions)
      if (partition.server == static_cast<std::int32_t>(s))
        config.partitions.push_back({PartitionId(static_cast<std::uint32_t>(partition.id)),
                                     static_cast<std::uint32_t>(partition.tensor),
                                     static_cast<std::uint64_t>(partition.first),
                                     static_cast<std::uint64_t>(partition.elements)});
    auto endpoint = options_.open();
    servers.push_back({Incarnation(70 + s), endpoint->info().address, "server"});
    engines_.push_back(std::make_unique<server::Engine>(std::move(endpoint), std::move(config)));
    engines_.back()->view(view);
  }
  for (auto& worker : workers_) {
    allocate(*worker);
    worker->data->connect(
        {.self = {kJob, Incarnation(10 + worker->rank), static_cast<std::uint32_t>(worker->rank)},
         .servers = servers,
         .layout = worker->layout,
         .pull_dtype = options_.pull,
         .codec = settings_.gradients(),
         .staleness = settings_.staleness});
  }
}

void TrainingCluster::allocate(Worker& worker) {
  const GradientCodec codec = settings_.gradients();
  if (!options_.gpus) {
    value_or_throw(worker.data->allocate(worker.layout, options_.pull, codec, true));
    worker.host_gradients =
        worker::HostGradients::make(worker.layout, codec, worker.data->payloads());
    return;
  }
  transport::testing::FakeCuda& cuda = *options_.gpus->cuda;
  const transport::GpuPath path = options_.gpus->path;
  worker.backend = std::make_unique<worker::testing::FakeGpuBackend>(cuda, open_kernels());
  worker.gpu = value_or_throw(transport::Gpu::open(cuda.driver(), 0, worker.backend->stream()));
  value_or_throw(worker.data->allocate_on(worker.gpu, path, worker.layout, options_.pull, codec,
                                          path == transport::GpuPath::kStaged));
  worker.gradients = value_or_throw(worker::DeviceGradients::make(
      *worker.backend, worker.gpu, worker.data->device_gradients(), worker.layout, codec));
  worker.computed = worker.backend->allocate(elements_ * sizeof(float));
}

Status TrainingCluster::weights(Worker& worker, std::span<float> weights) const {
  if (!worker.gpu) {
    kernels::widen(worker.data->weights().data(), options_.pull, weights);
    return {};
  }
  if (auto s = worker.gpu->before_program(); !s) return s;
  std::vector<std::byte> bytes(weights.size() * size_of(options_.pull));
  worker.backend->download(bytes.data(), worker.data->device_weights(), bytes.size());
  kernels::widen(bytes.data(), options_.pull, weights);
  return {};
}

Status TrainingCluster::push(Worker& worker, std::uint64_t step, std::span<float> gradient) {
  const float scale = loss_scale(step), clip = step % 3 == 1 ? options_.clip : 1;
  for (float& value : gradient) value *= scale;
  // Some by themselves, some with the end of the step.
  std::vector<PartitionId> parts;
  for (const auto& shard : worker.layout.shards())
    parts.insert(parts.end(), shard.begin(), shard.end());
  const auto half =
      parts.begin() + static_cast<std::ptrdiff_t>((step + worker.rank) % (parts.size() + 1));
  if (!worker.gpu) {
    worker.host_gradients->begin_step(scale);
    for (const worker::Layout::Tensor& tensor : worker.layout.tensors())
      if (!worker.host_gradients->encode(tensor, gradient.subspan(tensor.begin, tensor.elements),
                                         1))
        return fail(Code::kInternal, "a gradient is not finite");
    worker.host_gradients->end_step(true, clip);
    for (auto part = parts.begin(); part != half; ++part) worker.data->push({*part}, scale);
    worker.data->end_step({half, parts.end()}, scale, transport::Ending::kCommit, 1, {}, clip);
    return {};
  }
  worker.gradients->begin_step(scale);
  worker.backend->upload(worker.computed.as<float>(), gradient.data(), gradient.size_bytes());
  for (const worker::Layout::Tensor& tensor : worker.layout.tensors())
    worker.gradients->encode(tensor, {worker.computed.as<float>(tensor.begin), tensor.elements}, 1);
  const auto publish = [&](const std::vector<PartitionId>& some) {
    return worker.gradients->publish(some,
                                     [&worker, some, scale] { worker.data->push(some, scale); });
  };
  for (auto part = parts.begin(); part != half; ++part)
    if (auto s = publish({*part}); !s) return s;
  if (half != parts.end())
    if (auto s = publish({half, parts.end()}); !s) return s;
  auto finite = worker.gradients->finish();
  if (!finite) return tl::unexpected(std::move(finite).error());
  if (!*finite) return fail(Code::kInternal, "a gradient is not finite");
  worker.gradients->end_step(true, clip);
  worker.data->end_step({}, scale, transport::Ending::kCommit, 1, {}, clip);
  return {};
}

std::vector<float> TrainingCluster::residual(std::size_t rank) const {
  Worker& worker = *workers_[rank];
  return worker.gpu ? worker.gradients->residual() : worker.host_gradients->residual();
}

void TrainingCluster::set_residual(std::size_t rank, std::span<const float> residual) {
  Worker& worker = *workers_[rank];
  if (worker.gpu)
    worker.gradients->set_residual(residual);
  else
    worker.host_gradients->set_residual(residual);
}

bool TrainingCluster::wait(Worker& worker, const std::function<bool(const worker::Board&)>& ready,
                           std::string& problem) const {
  std::unique_lock lock(worker.board.mutex);
  const bool came = worker.board.changed.wait_for(lock, kPatience, [&] {
    return worker.board.failure || worker.board.suspicion || ready(worker.board);
  });
  const std::string who = "worker." + std::to_string(worker.rank) + ": ";
  if (worker.board.failure)
    problem = who + worker.board.failure->text;
  else if (worker.board.suspicion)
    problem = who + worker.board.suspicion->text;
  else if (!came)
    problem = who + "nothing came for a long time";
  return problem.empty();
}

std::string TrainingCluster::train(const Gradient& gradient) {
  std::string problem;
  // Flat as in the layout, which may leave room between tensors.
  std::vector<float> initial(elements_);
  for (const auto& tensor : workers_[0]->layout.tensors())
    for (std::size_t i = 0; i < tensor.elements; ++i) initial[tensor.begin + i] = initial_value(i);
  if (const Status pushed = workers_[0]->data->push_initial(initial); !pushed)
    return pushed.error().message;

  std::vector<float> weights(elements_), values(elements_);
  for (std::uint64_t step = 0; step < options_.steps; ++step)
    for (auto& worker : workers_) {
      if (!wait(
              *worker, [&](const worker::Board& b) { return b.weights == Clock(step); }, problem))
        return problem;
      if (auto s = this->weights(*worker, weights); !s) return s.error().message;
      gradient(worker->rank, step, weights, values);
      if (auto s = push(*worker, step, values); !s) return s.error().message;
    }
  for (auto& worker : workers_) {
    const auto ended = [&](const worker::Board& b) { return b.confirmed == Clock(options_.steps); };
    if (!wait(*worker, ended, problem)) return problem;
    worker->data->pull_final();
  }
  for (auto& worker : workers_) {
    if (!wait(
            *worker, [](const worker::Board& b) { return b.final_weights; }, problem))
      return problem;
    if (auto s = this->weights(*worker, weights); !s) return s.error().message;
    std::vector<float>& mine = final_.emplace_back();
    for (const auto& tensor : worker->layout.tensors()) {
      const auto its = std::span(weights).subspan(tensor.begin, tensor.elements);
      mine.insert(mine.end(), its.begin(), its.end());
    }
    const std::lock_guard lock(worker->board.mutex);
    if (worker->board.report.staleness_violations != 0)
      return "worker." + std::to_string(worker->rank) + " saw weights beyond the bound";
  }
  return problem;
}

}  // namespace leeway::conformance
