// The service and its client over real sockets, in one process.
#include "scheduler/service.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "job_fixture.h"
#include "memory_store.h"
#include "scheduler/client.h"
#include "scheduler/endpoint.h"
#include "scheduler/state.h"

namespace leeway::scheduler {
namespace {

constexpr milliseconds kLong{10'000};  // a deadline that only a failure reaches

ServiceOptions options_of() {
  ServiceOptions options;
  options.token = "token";
  return options;
}

// A member of a job that runs in this process.
struct Member {
  Member(const std::string& address, rpc::Role::type role, std::int32_t id) : client(address) {
    auto joined = client.join(request_of(role, id));
    REQUIRE_MESSAGE(joined.has_value(), error_of(joined));
    registration = *joined;
    who.token = "token";
    who.role = role;
    who.id = id;
    who.incarnation = registration.incarnation;
  }
  // Watches until the phase, reporting `report` meanwhile.
  template <typename Report>
  rpc::View until(rpc::Phase::type phase, Report& report) {
    rpc::View view;
    for (const auto end = MonotonicClock::now() + kLong; MonotonicClock::now() < end;) {
      auto next = client.watch(who, view.epoch, milliseconds(500), report);
      REQUIRE_MESSAGE(next.has_value(), error_of(next));
      view = *next;
      if constexpr (std::is_same_v<Report, rpc::ServerReport>) report.epoch = view.epoch;
      if (view.phase == phase) return view;
    }
    FAIL("the phase did not come");
    return view;
  }
  Client client;
  rpc::Caller who;
  rpc::Registration registration;
};

TEST_CASE("a job from joining to DONE over sockets, with a checkpoint at its end") {
  auto directory = std::make_shared<MemoryDirectory>();
  Service service(options_of(), with_directory(setup_of(1, 1)),
                  std::make_unique<MemoryStore>(directory));
  Member server(service.address(), rpc::Role::SERVER, 0);
  Member worker(service.address(), rpc::Role::WORKER, 0);
  CHECK(worker.registration.job == 77);
  CHECK(worker.registration.settings.at("momentum") == "0.9");
  REQUIRE(worker.client.declare(worker.who, small_model()).has_value());
  auto plan = worker.client.plan(worker.who);
  REQUIRE(plan.has_value());
  CHECK(plan->tensors.size() == 2);

  rpc::WorkerReport trained;
  trained.loss = std::numeric_limits<double>::quiet_NaN();
  auto server_side = std::async(std::launch::async, [&] {
    rpc::ServerReport report;
    report.ready = true;
    for (rpc::View view; view.phase != rpc::Phase::DONE;) {
      auto next = server.client.watch(server.who, view.epoch, milliseconds(500), report);
      if (!next) return next.error().message;
      view = *next;
      report.epoch = view.epoch;
      if (view.checkpoint.stage == rpc::CheckpointStage::HOLD) report.held = view.checkpoint.id;
      if (view.checkpoint.stage == rpc::CheckpointStage::CUT) report.durable = view.checkpoint.id;
    }
    return std::string();
  });
  worker.until(rpc::Phase::RUNNING, trained);
  trained.clock = 3;
  REQUIRE(worker.client.finish(worker.who, trained).has_value());
  worker.until(rpc::Phase::DONE, trained);
  CHECK(server_side.get().empty());
  CHECK(directory->manifests.at(0).workers.at(0).clock == Clock(3));
  CHECK(directory->manifests.at(0).created_unix_s > 1'600'000'000);
  Client person(service.address());
  CHECK(person.status().value().last_checkpoint.id == "000001");
  auto over = std::async(std::launch::async, [&] { return service.wait(kLong); });
  REQUIRE(person.stop("token", "seen").has_value());  // no lingering
  REQUIRE(over.wait_for(kLong / 2) == std::future_status::ready);
  CHECK(over.get() == rpc::Phase::DONE);
}

TEST_CASE("a long poll returns at once when the view changes, and after its time when not") {
  Service service(options_of(), setup_of(1, 2, {{"member_timeout_ms", "30000"}}), nullptr);
  Member worker(service.address(), rpc::Role::WORKER, 0);
  auto view = worker.client.watch(worker.who, 0, kLong, rpc::WorkerReport{});
  REQUIRE(view.has_value());
  auto same = worker.client.watch(worker.who, view->epoch, milliseconds(20), rpc::WorkerReport{});
  CHECK(same.value().epoch == view->epoch);
  auto waiting = std::async(std::launch::async, [&] {
    return worker.client.watch(worker.who, view->epoch, kLong, rpc::WorkerReport{});
  });
  Member other(service.address(), rpc::Role::WORKER, 1);
  const auto news = waiting.get();
  REQUIRE(news.has_value());
  CHECK(news->epoch > view->epoch);
  CHECK(news->workers.size() == 2);
}

TEST_CASE("A2 every change needs the token, and wrong incarnations are refused") {
  Service service(options_of(), setup_of(1, 1), nullptr);
  Member worker(service.address(), rpc::Role::WORKER, 0);
  Client& client = worker.client;
  for (const std::string wrong : {"", "tokeN", "token2", "toke"}) {
    rpc::Caller who = worker.who;
    who.token = wrong;
    auto request = request_of(rpc::Role::WORKER, 0);
    request.token = wrong;
    for (const std::string& text :
         {error_of(client.join(request)), error_of(client.declare(who, small_model())),
          error_of(client.watch(who, 0, milliseconds(0), rpc::WorkerReport{})),
          error_of(client.watch(who, 0, milliseconds(0), rpc::ServerReport{})),
          error_of(client.plan(who)), error_of(client.finish(who, rpc::WorkerReport{})),
          error_of(client.fault(who, "x")),
          error_of(client.lost(wrong, rpc::Role::WORKER, 0, "x", true)),
          error_of(client.checkpoint(wrong)), error_of(client.change(wrong, "learning_rate", "1")),
          error_of(client.stop(wrong, "x"))})
      CHECK(contains(text, "not the job's token"));
  }
  rpc::Caller stale = worker.who;
  stale.incarnation += 5;
  const auto refused = client.plan(stale);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == Code::kRefused);
  CHECK(client.status().value().phase == "GATHERING");
}

TEST_CASE("the restarted scheduler counts incarnations on, and finds its checkpoints") {
  auto directory = std::make_shared<MemoryDirectory>();
  std::int64_t before = 0;
  for (int start = 0; start < 3; ++start) {
    MemoryStore store(directory);
    JobSetup setup = with_directory(setup_of(1, 1));
    load_state(store, "auto", setup);
    CHECK(setup.restore == (start == 0 ? "" : "000001"));
    Service service(options_of(), setup, std::make_unique<MemoryStore>(directory));
    Member worker(service.address(), rpc::Role::WORKER, 0);
    CHECK(worker.registration.incarnation > before);
    before = worker.registration.incarnation;
    storage::Manifest manifest;
    manifest.id = "000001";
    manifest.workers[0].clock = Clock(3);
    if (start == 0) REQUIRE(store.commit(manifest).has_value());
  }
}

TEST_CASE("F2 a port in use, and an address that is none, are one line each") {
  Service service(options_of(), setup_of(1, 1), nullptr);
  ServiceOptions again = options_of();
  again.listen = service.address();
  try {
    Service second(again, setup_of(1, 1), nullptr);
    FAIL("two on one port");
  } catch (const ConfigError& error) {
    CHECK(contains(error.what(), "cannot listen on " + service.address()));
    CHECK(contains(error.what(), "--listen"));
    CHECK_FALSE(contains(error.what(), "\n"));
  }
  for (const std::string bad : {"", "host", ":1", "host:70000", "::1:5", "h:", "h:1x"})
    CHECK_MESSAGE(!parse_host_port(bad).has_value(), bad);
  CHECK(parse_host_port("[::1]:5").value().text() == "[::1]:5");
  Client nobody("127.0.0.1:1", milliseconds(500));
  const auto unreachable = nobody.status();
  REQUIRE_FALSE(unreachable.has_value());
  CHECK(unreachable.error().code == Code::kUnavailable);
  CHECK(contains(unreachable.error().message, "cannot reach the scheduler at 127.0.0.1:1"));
}

// A peer that says what it likes. Returns whether the scheduler then closed the connection.
bool closed_after(const std::string& address, const std::string& bytes) {
  const auto at = parse_host_port(address).value();
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(at.port);
  inet_pton(AF_INET, at.host.c_str(), &to.sin_addr);
  const timeval patience{10, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  if (!bytes.empty())
    REQUIRE(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  char answer[4096];
  ssize_t got = 0;
  do {
    got = ::recv(fd, answer, sizeof answer, 0);
  } while (got > 0);
  const bool closed = got == 0 || errno == ECONNRESET;
  ::close(fd);
  return closed;
}

std::string frame(const std::string& body) {
  const std::uint32_t size = htonl(static_cast<std::uint32_t>(body.size()));
  return std::string(reinterpret_cast<const char*>(&size), 4) + body;
}

TEST_CASE("garbage, oversized frames and silent peers cost only their own connection") {
  ServiceOptions options = options_of();
  options.idle_timeout = milliseconds(300);
  Service service(options, setup_of(1, 1), nullptr);
  const std::string address = service.address();
  CHECK(closed_after(address, std::string("\x7f\xff\xff\xff garbage", 12)));
  CHECK(closed_after(address, std::string("\xff\xff\xff\xff garbage", 12)));
  CHECK(closed_after(address, "GET / HTTP/1.1\r\n\r\n"));
  CHECK(closed_after(address, frame("not thrift at all")));
  CHECK(closed_after(address, ""));                              // silent
  CHECK(closed_after(address, std::string("\0\0\1\0half", 8)));  // a frame that never ends
  // declare_model with a list of two thousand million empty tensors: refused, not allocated.
  std::string call(
      "\x80\x01\x00\x01\x00\x00\x00\x0d"
      "declare_model\x00\x00\x00\x01",
      25);
  call += std::string("\x0c\x00\x02\x0f\x00\x01\x0c\x7f\xff\xff\xff", 11);
  CHECK(closed_after(address, frame(call)));
  Client client(address);
  CHECK(client.status().value().phase == "GATHERING");
}

TEST_CASE("a client whose idle connection was closed makes a new one") {
  ServiceOptions options = options_of();
  options.idle_timeout = milliseconds(200);
  Service service(options, setup_of(1, 1), nullptr);
  Client client(service.address());
  REQUIRE(client.status().has_value());
  CHECK(closed_after(service.address(), ""));  // as long as it takes to be closed
  CHECK(closed_after(service.address(), ""));
  CHECK(client.status().has_value());
}

TEST_CASE("beyond the limit connections wait for a place") {
  ServiceOptions options = options_of();
  options.max_connections = 2;
  options.idle_timeout = milliseconds(20'000);
  Service service(options, setup_of(1, 1), nullptr);
  auto first = std::make_unique<Client>(service.address());
  Client second(service.address());
  REQUIRE(first->status().has_value());
  REQUIRE(second.status().has_value());
  Client third(service.address(), milliseconds(200));
  const auto waited = third.status();
  REQUIRE_FALSE(waited.has_value());
  CHECK(waited.error().code == Code::kTimedOut);
  first.reset();
  Client fourth(service.address(), kLong);
  CHECK(fourth.status().has_value());
}

TEST_CASE("a connection lives on after more text than the largest message") {
  Service service(options_of(), setup_of(1, 1), nullptr);
  Member worker(service.address(), rpc::Role::WORKER, 0);
  rpc::Caller who = worker.who;
  who.incarnation += 1;  // refused each time: nothing is kept
  const std::string megabyte(1 << 20, 'x');
  for (int i = 0; i < 70; ++i)
    REQUIRE(contains(error_of(worker.client.fault(who, megabyte)), "is not known here"));
}

TEST_CASE("M2 the end of the service ends long polls at once") {
  auto service = std::make_unique<Service>(
      options_of(), setup_of(1, 1, {{"member_timeout_ms", "60000"}}), nullptr);
  Member worker(service->address(), rpc::Role::WORKER, 0);
  auto waiting = std::async(std::launch::async, [&] {
    return worker.client.watch(worker.who, 1'000'000, kLong, rpc::WorkerReport{});
  });
  service.reset();
  CHECK(waiting.wait_for(kLong / 2) == std::future_status::ready);
  CHECK_FALSE(worker.client.status().has_value());
}

}  // namespace
}  // namespace leeway::scheduler
