// Answers of the scheduler as a person or a program reads them. Pure: values in, text out.
#pragma once

#include <string>
#include <vector>

#include "scheduler_types.h"  // generated

namespace leeway::scheduler {

// Aligned columns; numbers keep to the right. The first row is the heading.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) { rows_.push_back(std::move(heading)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Of the next update: learning_rate times its schedule at the clock of the fastest worker. NaN when
// the settings are of another version.
double learning_rate_now(const rpc::JobStatus& status);

std::string status_text(const rpc::JobStatus& status);
std::string workers_text(const rpc::JobStatus& status);
std::string servers_text(const rpc::JobStatus& status);
std::string tensors_text(const std::vector<rpc::TensorStatus>& tensors);
std::string checkpoints_text(const std::vector<rpc::CheckpointInfo>& checkpoints);

// Strict JSON: a number that is not finite is null, text that is not UTF-8 is mended.
std::string status_json(const rpc::JobStatus& status);
std::string workers_json(const rpc::JobStatus& status);
std::string servers_json(const rpc::JobStatus& status);
std::string tensors_json(const std::vector<rpc::TensorStatus>& tensors);
std::string checkpoints_json(const std::vector<rpc::CheckpointInfo>& checkpoints);

}  // namespace leeway::scheduler
