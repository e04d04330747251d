#include "common/knobs.h"

#include <doctest/doctest.h>

#include "common/job_settings.h"

namespace leeway {
namespace {

std::string error_of(const Status& status) { return status ? "" : status.error().message; }

struct Fixture {
  JobSettings settings;
  Knobs knobs;
  Fixture() { settings.describe(knobs); }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "later layers win and say who set a value") {
  REQUIRE(knobs.set_from_toml("staleness = 3\nupdate = 'per_clock'\n", "job.toml"));
  CHECK(settings.staleness.value == 3);
  REQUIRE(knobs.set_from_environment([](const char* name) {
    return std::string_view(name) == "LEEWAY_STALENESS" ? "inf" : nullptr;
  }));
  CHECK(settings.staleness.infinite());
  REQUIRE(knobs.set("staleness", "1", "flag --staleness"));
  CHECK(settings.staleness.value == 1);
  CHECK(settings.per_clock());
  CHECK(knobs.find("update")->source == "job.toml:2");
  CHECK(knobs.find("staleness")->source == "flag --staleness");
  CHECK(knobs.print_config().find("staleness = \"1\"") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "a wrong setting names file, line, key and the nearest valid one") {
  CHECK(error_of(knobs.set_from_toml("\nstalenes = 3\n", "job.toml")) ==
        "job.toml:2: unknown setting 'stalenes' (did you mean 'staleness'?)");
  const std::string bad = error_of(knobs.set_from_toml("staleness = -1\n", "job.toml"));
  CHECK(bad.starts_with("job.toml:1: staleness = '-1' is not valid"));
  CHECK(error_of(knobs.set_from_toml("staleness = [\n", "job.toml")).starts_with("job.toml:"));
  CHECK(!knobs.set("update", "sometimes", "flag"));
  CHECK(!knobs.set("learning_rate", "nan", "flag"));
  CHECK(!knobs.set("staleness", "", "flag"));
  CHECK(!knobs.set("staleness", "4294967296", "flag"));
}

TEST_CASE_FIXTURE(Fixture, "sizes take suffixes and refuse an overflow") {
  REQUIRE(knobs.set("server_memory_limit", "2GiB", "flag"));
  CHECK(settings.server_memory_limit.value == 2ull << 30);
  CHECK(!knobs.set("server_memory_limit", "99999999999GiB", "flag"));
  CHECK(!knobs.set("server_memory_limit", "GiB", "flag"));
}

TEST_CASE_FIXTURE(Fixture, "values travel whole to another process") {
  REQUIRE(knobs.set("staleness", "inf", "flag"));
  REQUIRE(knobs.set("learning_rate", "0.1234567890123", "flag"));
  const auto other = JobSettings::from_values(knobs.values());
  REQUIRE(other);
  CHECK(other->staleness.infinite());
  CHECK(other->learning_rate == settings.learning_rate);
  CHECK(!JobSettings::from_values({{"no_such_setting", "1"}}));
}

TEST_CASE_FIXTURE(Fixture, "settings that do not go together are refused") {
  CHECK(settings.check());
  settings.loss_scale_min = 3;
  CHECK(!settings.check());
  settings.loss_scale_min = 4096;
  settings.loss_scale_initial = 2;
  CHECK(error_of(settings.check()).find("outside") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "a quorum goes with clocks, a grace time with a quorum") {
  REQUIRE(knobs.set("grace_ms", "auto", "flag"));
  CHECK(settings.grace_ms.automatic);
  CHECK(knobs.find("grace_ms")->print() == "auto");
  CHECK(error_of(settings.check()).find("grace_ms needs a quorum") != std::string::npos);
  REQUIRE(knobs.set("quorum", "2", "flag"));
  CHECK(error_of(settings.check()).find("needs update = per_clock") != std::string::npos);
  REQUIRE(knobs.set("update", "per_clock", "flag"));
  CHECK(settings.check());
  REQUIRE(knobs.set("grace_ms", "20", "flag"));
  CHECK(!settings.grace_ms.automatic);
  CHECK(settings.grace_ms.wait.count() == 20);
  CHECK(!knobs.set("grace_ms", "soon", "flag"));
}

TEST_CASE_FIXTURE(Fixture, "lamb needs whole clocks") {
  REQUIRE(knobs.set("optimizer", "lamb", "flag"));
  CHECK(error_of(settings.check()).find("set update = per_clock") != std::string::npos);
  REQUIRE(knobs.set("update", "per_clock", "flag"));
  CHECK(settings.check());
  REQUIRE(knobs.set("quorum", "2", "flag"));
  CHECK(error_of(settings.check()).find("set quorum = 0") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "lamb's trust ratio spares the names that weight decay spares") {
  settings.optimizer.value = "lamb";
  settings.weight_decay_skip = "*.bias";
  CHECK(settings.decays("a.weight"));
  CHECK_FALSE(settings.decays("a.bias"));
}

TEST_CASE_FIXTURE(Fixture, "what needs other members is refused") {
  settings.consistent = true;
  CHECK(settings.check_members(1, 4));
  CHECK(error_of(settings.check_members(2, 4)).find("needs update = per_clock") !=
        std::string::npos);
  REQUIRE(knobs.set("update", "per_clock", "flag"));
  CHECK(settings.check_members(2, 4));
  settings.staleness = {1};
  CHECK(!settings.check_members(2, 4));
  settings.staleness = {0};
  settings.quorum = 4;
  CHECK(settings.check_members(1, 4));
  CHECK(!settings.check_members(2, 4));
  CHECK(error_of(settings.check_members(1, 3)).find("the job's 3 workers") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "a bound may be chosen within two others") {
  REQUIRE(knobs.set("staleness", "auto:1..8", "flag"));
  CHECK(settings.staleness.value == 8);
  CHECK(settings.staleness.low == 1);
  CHECK(JobSettings::from_values(knobs.values())->staleness == settings.staleness);
  for (const char* bad : {"auto", "auto:", "auto:3", "auto:4..3", "auto:1..inf", "auto:..2"})
    CHECK(!knobs.set("staleness", bad, "flag"));
  REQUIRE(knobs.set("staleness", "2", "flag"));
  CHECK(!settings.staleness.low);
}

TEST_CASE("nearest gives nothing for a word far from all") {
  CHECK(nearest("xyzzyplugh", {"staleness", "update"}).empty());
  CHECK(nearest("updat", {"staleness", "update"}) == "update");
}

}  // namespace leeway
