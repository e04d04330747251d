#include "server/transfer_queue.h"

#include <doctest/doctest.h>

#include <string>

namespace leeway::server {

TEST_CASE("workers take turns, each in its own order, within number and volume") {
  TransferQueue queue(2, 100);
  std::string started;
  const auto add = [&](std::uint32_t worker, std::uint64_t bytes, char name) {
    queue.add(WorkerId(worker), bytes, [&started, name] { started += name; });
  };
  add(0, 50, 'a');
  add(0, 50, 'b');
  add(0, 10, 'c');
  add(0, 10, 'd');
  add(1, 60, 'x');
  add(1, 10, 'y');
  CHECK(started == "ab");
  queue.finished(50);
  CHECK(started == "abc");
  queue.finished(50);
  CHECK(started == "abcx");  // a late comer need not wait for all of the first
  queue.finished(10);
  CHECK(started == "abcxd");
  queue.finished(10);
  CHECK(started == "abcxdy");
  queue.finished(60);
  queue.finished(10);
  add(0, 90, 'm');
  add(1, 20, 'n');
  CHECK(started == "abcxdym");  // there would be too much in flight
  queue.finished(90);
  CHECK(started == "abcxdymn");
  queue.finished(20);
  add(0, 1000, 'z');
  CHECK(started == "abcxdymnz");  // larger than all that is allowed: alone
}

}  // namespace leeway::server
