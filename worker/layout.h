// Where every tensor and partition lies: in this worker's buffers, and on which server.
//
// Made once from the scheduler's plan; constant afterwards, so read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/codec.h"
#include "common/ids.h"
#include "common/job_settings.h"
#include "common/result.h"
#include "common/tensor.h"

namespace leeway::rpc {
class Plan;
}

namespace leeway::worker {

// A parameter as the program declared it.
struct Declared {
  std::string name;
  Shape shape;
  std::size_t elements = 0;
};

class Layout {
 public:
  struct Tensor {
    std::size_t begin = 0;  // of its first element, in elements of a flat buffer
    std::size_t elements = 0;
    std::vector<PartitionId> parts;  // what travels of it, in order
  };
  // What travels as one: a bundle of partitions (transport/bundle.h), by the id of its first.
  struct Part {
    std::size_t begin = 0;     // in elements of a flat buffer
    std::size_t elements = 0;  // 0: empty, which never travels, or in the bundle of another
    std::size_t tensors = 0;   // that lie in it
    ServerId server;
  };

  // kRefused when the plan is not of these parameters, kDataLoss when it does not hold together.
  static Result<Layout> make(const rpc::Plan& plan, const std::vector<Declared>& declared,
                             std::size_t servers, const JobSettings& settings);

  // In order of declaration.
  const std::vector<Tensor>& tensors() const noexcept { return tensors_; }
  // By partition id.
  const std::vector<Part>& parts() const noexcept { return parts_; }
  // By server: the parts that travel, in order of declaration, which a forward pass needs them in.
  const std::vector<std::vector<PartitionId>>& shards() const noexcept { return shards_; }
  // Of one flat buffer that holds all tensors.
  std::size_t elements() const noexcept { return elements_; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<Part> parts_;
  std::vector<std::vector<PartitionId>> shards_;
  std::size_t elements_ = 0;

  class Maker;
};

// Elements [begin, end) of the flat buffer, which a part and a tensor share: of several tensors the
// part holds all of each, else the part lies in the tensor.
struct Stretch {
  std::size_t begin = 0, end = 0;
};
Stretch shared_by(const Layout::Part& part, const Layout::Tensor& tensor) noexcept;

// Where a payload lies in the memory of the gradients, in bytes. Each is alone on its cache lines.
struct Place {
  static constexpr std::size_t kLine = 64;
  std::size_t offset = 0, bytes = 0;
  // Of its lines.
  std::size_t end() const noexcept { return offset + (bytes + kLine - 1) / kLine * kLine; }
};
// By part.
std::vector<Place> payload_places(const Layout& layout, const GradientCodec& codec);

}  // namespace leeway::worker
