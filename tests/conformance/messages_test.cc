// Messages: whole, of every length, from many threads and many senders.
#include <doctest/doctest.h>

#include <algorithm>
#include <thread>

#include "tests/conformance/node.h"

namespace leeway::conformance {

TEST_CASE("an endpoint says what it got") {
  const Node node;
  const transport::EndpointInfo& info = node.endpoint->info();
  if (!fabric().hostile()) CHECK(info.fabric == fabric().name);
  CHECK_FALSE(info.provider.empty());
  CHECK_FALSE(info.device.empty());
  CHECK_FALSE(info.address.empty());
  CHECK(info.max_message >= 4096);
  if (fabric().has_ports()) CHECK(info.printable.find(fabric().bind + ":") != std::string::npos);
}

TEST_CASE("messages of every length go both ways, whole") {
  Node a, b;
  const Peer to_b = a.connect(b), to_a = b.connect(a);
  CHECK(a.connect(b) == to_b);  // the same address again is the same peer
  const std::size_t most = a.endpoint->info().max_message;
  std::vector<std::string> sent;
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{63},
        std::size_t{65}, std::size_t{127}, std::size_t{129}, std::size_t{1021}, most - 1, most}) {
    std::string text(size, '\0');
    fill(std::as_writable_bytes(std::span(text)), size);
    CHECK(a.send(to_b, text).status.has_value());
    CHECK(b.send(to_a, text).status.has_value());
    sent.push_back(std::move(text));
  }
  std::ranges::sort(sent);
  REQUIRE(a.has_received(sent.size()));
  REQUIRE(b.has_received(sent.size()));
  CHECK(a.messages() == sent);
  CHECK(b.messages() == sent);
  CHECK(a.endpoint->counters().messages_sent == sent.size());
  CHECK(b.endpoint->counters().messages_received >= sent.size());
  CHECK(code_of(a.send(to_b, std::string(most + 1, 'x'))) == Code::kInvalidArgument);
}

TEST_CASE("a flood of messages from many threads arrives whole") {
  constexpr int kThreads = 4, kEach = 500;
  Node a, b;
  const Peer to_b = a.connect(b);
  Tally tally;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i)
          a.endpoint->post([&, t, i] {
            const std::string text = std::to_string(t * kEach + i);
            a.endpoint->send(to_b, std::as_bytes(std::span(text)), soon(), tally.next());
          });
      });
  }
  REQUIRE(b.has_received(kThreads * kEach));
  CHECK(a.on_thread([] { return true; }));  // all have begun
  CHECK(tally.all_ended());
  CHECK(tally.good() == kThreads * kEach);
  std::vector<int> numbers;
  for (const std::string& text : b.messages()) numbers.push_back(std::stoi(text));
  std::ranges::sort(numbers);
  bool each_once = numbers.size() == kThreads * kEach;
  for (std::size_t i = 0; each_once && i < numbers.size(); ++i)
    each_once = numbers[i] == static_cast<int>(i);
  CHECK(each_once);
}

TEST_CASE("messages from many senders at once, as long as they may be") {
  constexpr std::size_t kSenders = 12, kEach = 60;
  Node receiver({.peers = kSenders});
  std::vector<std::unique_ptr<Node>> senders;
  std::vector<std::string> sent;
  Tally tally;
  for (std::size_t s = 0; s < kSenders; ++s) {
    senders.push_back(std::make_unique<Node>());
    Node& sender = *senders.back();
    const Peer peer = sender.connect(receiver);
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < kEach; ++i) {
      std::string text(sender.endpoint->info().max_message - i, '\0');
      fill(std::as_writable_bytes(std::span(text)), s * 1000 + i);
      texts.push_back(std::move(text));
    }
    sent.insert(sent.end(), texts.begin(), texts.end());
    sender.endpoint->post([&sender, &tally, peer, texts = std::move(texts)] {
      for (const std::string& text : texts)
        sender.endpoint->send(peer, std::as_bytes(std::span(text)), soon(), tally.next());
    });
  }
  REQUIRE(receiver.has_received(sent.size()));
  CHECK(tally.all_ended());
  CHECK(tally.good() == sent.size());
  std::ranges::sort(sent);
  CHECK(receiver.messages() == sent);
}

TEST_CASE("timers run in their order, and not early") {
  Node node;
  std::vector<int> order;
  std::promise<void> last;
  const TimePoint start = MonotonicClock::now();
  bool early = false;
  node.endpoint->post([&] {
    for (const int ms : {30, 10, 20})
      node.endpoint->at(start + milliseconds(ms), [&, ms] {
        early |= MonotonicClock::now() < start + milliseconds(ms);
        order.push_back(ms);
        if (order.size() == 3) last.set_value();
      });
  });
  last.get_future().get();
  node.settle();
  CHECK(order == std::vector<int>{10, 20, 30});
  CHECK_FALSE(early);
}

}  // namespace leeway::conformance
