#include "scheduler/state.h"

#include <fmt/format.h>

#include <charconv>

#include "scheduler/one_line.h"

namespace leeway::scheduler {
namespace {

// Reserved with one write, so that registering a member writes nothing: each start of the scheduler
// begins a new million.
constexpr std::int64_t kIncarnationsPerStart = 1'000'000;
constexpr const char* kIncarnationKey = "incarnation";

std::int64_t reserve_incarnations(storage::ManifestStore& store) {
  std::int64_t next = 1;
  if (const auto text = value_or_throw(store.get(kIncarnationKey))) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), next);
    if (error != std::errc() || end != text->data() + text->size() || next < 1 ||
        next > INT64_MAX - kIncarnationsPerStart)
      throw ConfigError(fmt::format(
          "the checkpoint directory's count of incarnations is damaged: '{}'", one_line(*text)));
  }
  value_or_throw(store.put(kIncarnationKey, std::to_string(next + kIncarnationsPerStart)));
  return next;
}

}  // namespace

void load_state(storage::ManifestStore& store, const std::string& resume, JobSetup& setup) {
  setup.first_incarnation = reserve_incarnations(store);
  setup.history = value_or_throw(store.list());
  if (resume == "auto")
    setup.restore = setup.history.empty() ? "" : setup.history.back().id;
  else
    setup.restore = resume == "never" ? "" : resume;
}

}  // namespace leeway::scheduler
