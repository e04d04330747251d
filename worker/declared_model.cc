#include "worker/declared_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "scheduler_types.h"  // generated

namespace leeway::worker {

Result<Parameter> DeclaredModel::add(std::string name, Shape shape,
                                     std::span<const float> initial) {
  const auto wrong = [](std::string why) { return fail(Code::kInvalidArgument, std::move(why)); };
  if (name.empty()) return wrong("a parameter without a name was declared");
  const auto elements = element_count(shape);
  if (!elements)
    return wrong(fmt::format("parameter {} has the shape {}, which no memory holds", name,
                             to_string(shape)));
  if (*elements != initial.size())
    return wrong(fmt::format("parameter {} has {} elements by its shape {} and {} initial values",
                             name, *elements, to_string(shape), initial.size()));
  for (const Declared& other : parameters_)
    if (other.name == name) return wrong(fmt::format("parameter {} is declared twice", name));
  parameters_.push_back({std::move(name), std::move(shape), static_cast<std::size_t>(*elements)});
  initial_.emplace_back(initial.begin(), initial.end());
  return Parameter(parameters_.size() - 1);
}

rpc::Model DeclaredModel::to_rpc(const std::map<std::string, std::string>& settings) const {
  rpc::Model model;
  model.settings = settings;
  for (const Declared& declared : parameters_) {
    rpc::TensorSpec tensor;
    tensor.name = declared.name;
    tensor.shape = declared.shape;
    model.tensors.push_back(std::move(tensor));
  }
  return model;
}

std::vector<float> DeclaredModel::initial(const Layout& layout) const {
  std::vector<float> values(layout.elements());
  for (std::size_t i = 0; i < initial_.size(); ++i)
    std::copy(initial_[i].begin(), initial_[i].end(),
              values.begin() + static_cast<std::ptrdiff_t>(layout.tensors()[i].begin));
  return values;
}

}  // namespace leeway::worker
