// The command line of leeway-scheduler.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "scheduler/model_core.h"

namespace leeway::scheduler {

struct DaemonOptions {
  std::string listen = "127.0.0.1:0";
  std::uint32_t servers = 1;
  std::uint32_t workers = 1;
  std::uint32_t max_workers = 0;  // 0 = `workers`
  std::string checkpoint_dir;
  std::string resume = "auto";
  std::string token;
  SettingValues settings;  // only what was set: file < environment < --set
};

struct ParsedOptions {
  std::optional<DaemonOptions> options;  // none: `text` is all there is to do
  std::string text;                      // of --help or --print-config
};

// `environment` answers as getenv does. ConfigError: one line.
ParsedOptions parse_daemon_options(int argc, char** argv,
                                   const std::function<const char*(const char*)>& environment);

}  // namespace leeway::scheduler
