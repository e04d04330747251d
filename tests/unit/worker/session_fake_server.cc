#include "tests/unit/worker/session_fake_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <span>
#include <utility>
#include <variant>

#include "common/half.h"
#include "kernels/cast.h"
#include "kernels/codec.h"
#include "tests/unit/worker/session_fake_scheduler.h"
#include "transport/crc32c.h"

namespace leeway::worker::testing {

using transport::Ending;

namespace {

TimePoint soon() { return MonotonicClock::now() + kDeadline; }

}  // namespace

FakeServer::FakeServer(std::uint32_t id)
    : id_(id), endpoint_(transport::Endpoint::open({.fabric = "tcp"})) {
  endpoint_->start([this](std::span<const std::byte> bytes) { on_message(bytes); });
}

void FakeServer::restart(Dtype pull_dtype, bool initialized) {
  std::promise<void> done;
  on_thread([&] {
    if (s_.worker) endpoint_->disconnect(*s_.worker);
    s_ = State{};
    s_.pull_dtype = pull_dtype;
    s_.initialized = initialized;
    done.set_value();
  });
  done.get_future().wait();
}

void FakeServer::on_thread(transport::Task task) {
  endpoint_->post([this, task = std::move(task)] {
    const std::lock_guard lock(mutex_);
    task();
    changed_.notify_all();
  });
}

void FakeServer::meet(std::string address) {
  on_thread([this, address = std::move(address)] {
    auto peer = endpoint_->connect(std::as_bytes(std::span(address)));
    if (!peer) return wrong(peer.error().message);
    s_.worker = *peer;
  });
}

void FakeServer::withhold_pulls(bool withhold) {
  on_thread([this, withhold] {
    s_.pulls_withheld = withhold;
    answer_waiting();
  });
}

void FakeServer::withhold_taken(bool withhold) {
  on_thread([this, withhold] {
    s_.taken_withheld = withhold;
    if (withhold) return;
    for (const auto& taken : std::exchange(s_.untold, {})) reply(taken);
  });
}

void FakeServer::change(PartitionId partition, float add) {
  const std::lock_guard lock(mutex_);
  for (float& value : s_.masters[partition]) value += add;
  s_.versions[partition] = s_.versions[partition].next();
}

void FakeServer::lag(std::uint64_t clocks) {
  on_thread([this, clocks] { s_.lag = clocks; });
}

void FakeServer::refuse(std::string text) {
  on_thread([this, text = std::move(text)] { s_.refusal = text; });
}

void FakeServer::on_message(std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  while (s_.worker && !bytes.empty()) {
    const auto message = transport::decode_next(bytes);
    if (message)
      take_message(*message);
    else
      wrong(message.error().message);
  }
  changed_.notify_all();
}

void FakeServer::take_message(const transport::Message& message) {
  if (message.sender.job != static_cast<std::uint64_t>(kJob)) return wrong("another job");
  if (const auto* push = std::get_if<transport::Push>(&message.body)) {
    for (const auto& entry : push->entries) read(*push, entry);
  } else if (const auto* commit = std::get_if<transport::Commit>(&message.body)) {
    end(*commit);
  } else if (const auto* pull = std::get_if<transport::Pull>(&message.body)) {
    ++s_.pulls_seen;
    s_.pulls.push_back(*pull);
    if (pull->total != pull->entries.size()) wrong("a pull in several messages");
    answer_waiting();
  } else {
    wrong("a message that servers send");
  }
}

void FakeServer::read(const transport::Push& push, const transport::Push::Entry& entry) {
  auto memory = std::make_shared<transport::RegisteredMemory>(
      value_or_throw(endpoint_->allocate(entry.bytes, transport::Access::kOwn)));
  endpoint_->read(*s_.worker, {memory.get(), 0, entry.bytes}, {push.memory, entry.offset}, soon(),
                  [this, memory, push, entry](const transport::Outcome& outcome) {
                    const std::lock_guard lock(mutex_);
                    // It fails when a test's session ends in the middle of a step.
                    if (outcome.status) take(push, entry, memory->bytes().first(entry.bytes));
                    changed_.notify_all();
                  });
}

void FakeServer::take(const transport::Push& push, const transport::Push::Entry& entry,
                      std::span<const std::byte> payload) {
  if (entry.checksum) {
    ++s_.checksums;
    if (transport::crc32c(payload) != *entry.checksum) wrong("a payload with a wrong checksum");
  }
  // Restored, it has no weights to tell their number; those tests send FP16.
  const auto master = s_.masters.find(entry.partition);
  std::vector<float> values(entry.initial                ? payload.size() / sizeof(float)
                            : master == s_.masters.end() ? payload.size() / sizeof(Half)
                                                         : master->second.size());
  const GradientCodec codec{entry.codec};
  if (codec.bytes(values.size()) != payload.size()) return wrong("a payload of a wrong size");
  const auto gradient =
      kernels::read_gradient(codec, payload.data(), values.size(), 1 / entry.scale);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = kernels::load_element(gradient, i) * gradient.inverse_scale;
  if (entry.initial) {
    s_.masters[entry.partition] = values;
  } else if (!s_.staged.emplace(entry.partition, std::move(values)).second) {
    wrong("a partition twice in a step");
  }
  ++s_.payloads;
  const transport::PushTaken taken{entry.initial ? transport::kInitialValues : push.clock,
                                   {entry.partition}};
  if (s_.taken_withheld) {
    s_.untold.push_back(taken);
  } else {
    reply(taken);
  }
}

void FakeServer::end(const transport::Commit& commit) {
  if (s_.refusal) return reply(transport::Refused{Code::kRefused, *std::exchange(s_.refusal, {})});
  s_.endings.push_back({commit, s_.staged.size()});
  if (!s_.untold.empty()) wrong("an ending with payloads untaken");
  if (commit.ending == Ending::kInitial) {
    s_.initialized = true;
    for (const auto& [partition, values] : s_.masters) s_.versions[partition] = Version(1);
  } else if (commit.ending == Ending::kCommit) {
    for (const auto& [partition, gradient] : s_.staged) {
      std::vector<float>& master = s_.masters[partition];
      master.resize(gradient.size());
      for (std::size_t i = 0; i < master.size(); ++i) master[i] -= commit.factor * gradient[i];
      s_.versions[partition] = s_.versions[partition].next();
    }
  }
  s_.staged.clear();
  reply(transport::Committed{commit.clock, commit.ending});
  answer_waiting();
}

void FakeServer::answer_waiting() {
  if (!s_.initialized || s_.pulls_withheld) return;
  for (const transport::Pull& pull : std::exchange(s_.pulls, {})) answer(pull);
}

void FakeServer::answer(const transport::Pull& pull) {
  struct Writing {
    std::vector<transport::RegisteredMemory> memory;
    std::size_t left = 0;
    transport::Pulled pulled;
  };
  auto writing = std::make_shared<Writing>();
  writing->pulled = {.clock = pull.clock,
                     .request = pull.request,
                     .slowest = Clock(pull.clock.value() - std::min(s_.lag, pull.clock.value()))};
  std::vector<std::pair<std::size_t, std::uint64_t>> writes;  // bytes, offset
  for (const auto& entry : pull.entries) {
    if (s_.versions[entry.partition] == entry.have) continue;
    const std::vector<float>& master = s_.masters[entry.partition];
    const std::size_t bytes = master.size() * size_of(s_.pull_dtype);
    writing->memory.push_back(value_or_throw(endpoint_->allocate(bytes, transport::Access::kOwn)));
    kernels::convert(master, s_.pull_dtype, writing->memory.back().bytes().data());
    writing->pulled.entries.push_back({entry.partition, s_.versions[entry.partition]});
    writes.emplace_back(bytes, entry.offset);
  }
  writing->pulled.total = static_cast<std::uint32_t>(writing->pulled.entries.size());
  writing->left = writes.size();
  if (writes.empty()) return reply(writing->pulled);
  for (std::size_t i = 0; i < writes.size(); ++i)
    endpoint_->write(*s_.worker, {&writing->memory[i], 0, writes[i].first},
                     {pull.memory, writes[i].second}, soon(),
                     [this, writing](const transport::Outcome& outcome) {
                       const std::lock_guard lock(mutex_);
                       // A session that finished does not take its last weights.
                       if (outcome.status && --writing->left == 0) reply(writing->pulled);
                     });
}

void FakeServer::reply(const transport::Body& body) {
  const transport::Sender self{static_cast<std::uint64_t>(kJob),
                               Incarnation(static_cast<std::uint64_t>(kServerIncarnation)), id_};
  if (s_.worker) endpoint_->send(*s_.worker, transport::encode(self, body), soon());
}

void FakeServer::wrong(std::string text) {
  if (!s_.error) s_.error = fmt::format("server.{}: {}", id_, text);
}

template <typename Ready>
bool FakeServer::wait(Ready ready) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kDeadline, ready);
}

bool FakeServer::has_endings(std::size_t count) const {
  return wait([&] { return s_.endings.size() >= count; });
}
bool FakeServer::has_payloads(std::size_t count) const {
  return wait([&] { return s_.payloads >= count; });
}
bool FakeServer::has_pulls(std::size_t count) const {
  return wait([&] { return s_.pulls_seen >= count; });
}

std::vector<FakeServer::Ended> FakeServer::endings() const {
  const std::lock_guard lock(mutex_);
  return s_.endings;
}
std::map<PartitionId, std::vector<float>> FakeServer::masters() const {
  const std::lock_guard lock(mutex_);
  return s_.masters;
}
std::size_t FakeServer::checksums() const {
  const std::lock_guard lock(mutex_);
  return s_.checksums;
}
std::optional<std::string> FakeServer::error() const {
  const std::lock_guard lock(mutex_);
  return s_.error;
}

}  // namespace leeway::worker::testing
