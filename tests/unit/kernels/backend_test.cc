#include "kernels/backend.h"

#include <doctest/doctest.h>

#include <cstring>

#include "tests/unit/kernels/executors.h"

namespace leeway::kernels::test {
namespace {

int released = 0;
void count_release(void*) { ++released; }

TEST_CASE("a buffer releases once, and moves") {
  released = 0;
  int data = 0;
  {
    Buffer first(&data, sizeof(data), count_release);
    Buffer second(std::move(first));
    CHECK(second.as<int>() == &data);
    CHECK(second.bytes() == sizeof(data));
    Buffer third;
    third = std::move(second);
    CHECK(released == 0);
    third = Buffer(&data, sizeof(data), count_release);
    CHECK(released == 1);
  }
  CHECK(released == 2);
}

TEST_CASE("device memory comes zeroed, takes and gives bytes") {
  for (Backend* backend : backends()) {
    CAPTURE(backend->name());
    const Buffer buffer = backend->allocate(40);
    CHECK(to_host<int>(*backend, buffer, 10) == std::vector<int>(10, 0));
    const std::vector<int> values{1, 2, 3, 4, 5};
    backend->upload(buffer.as<int>(5), values.data(), 20);
    CHECK(to_host<int>(*backend, buffer, 10) == std::vector<int>{0, 0, 0, 0, 0, 1, 2, 3, 4, 5});
    backend->fill_zero(buffer.as<int>(), 28);
    CHECK(to_host<int>(*backend, buffer, 10) == std::vector<int>{0, 0, 0, 0, 0, 0, 0, 3, 4, 5});
    const Buffer empty = backend->allocate(0);
    backend->upload(empty.as<int>(), nullptr, 0);
    backend->synchronize();
  }
}

TEST_CASE("the CPU backend answers always, CUDA or one line that says why not") {
  CHECK(open_backend(BackendChoice::kCpu)->name().starts_with("cpu ("));
  try {
    const auto backend = open_backend(BackendChoice::kCuda);
    CHECK(backend->name().starts_with("cuda:0 "));
    CHECK(open_backend(BackendChoice::kAuto)->name() == backend->name());
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    CHECK(message.starts_with("backend cuda: no CUDA device: "));
    CHECK(message.find('\n') == std::string::npos);
    CHECK(open_backend(BackendChoice::kAuto)->name().starts_with("cpu ("));
  }
}

}  // namespace
}  // namespace leeway::kernels::test
