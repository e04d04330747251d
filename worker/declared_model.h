// The parameters that a program declared, with their initial values until the job has weights.
//
// Called from the program's thread. A plain value.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "worker/layout.h"
#include "worker/session.h"

namespace leeway::rpc {
class Model;
}

namespace leeway::worker {

class DeclaredModel {
 public:
  // kInvalidArgument says what is wrong with it, by its name.
  Result<Parameter> add(std::string name, Shape shape, std::span<const float> initial);

  bool empty() const noexcept { return parameters_.empty(); }
  std::size_t size() const noexcept { return parameters_.size(); }
  const Declared& operator[](Parameter parameter) const { return parameters_[parameter.index()]; }
  // In order of declaration.
  const std::vector<Declared>& parameters() const noexcept { return parameters_; }

  // As the scheduler takes it, with the program's own settings.
  rpc::Model to_rpc(const std::map<std::string, std::string>& settings) const;
  // All initial values, flat as in the layout.
  std::vector<float> initial(const Layout& layout) const;
  void forget_initial() noexcept { initial_.clear(); }

 private:
  std::vector<Declared> parameters_;
  std::vector<std::vector<float>> initial_;  // by parameter
};

}  // namespace leeway::worker
