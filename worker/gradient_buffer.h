// The gradients of one step on their way to the servers: gathered over micro-batches in FP32,
// encoded (kernels/codec.h) and checked in one pass, into the memory that servers read or, on a
// GPU, its source.
//
// Called from the program's thread. The layout and the target outlive it. A step's bytes may be
// overwritten once begin_step() of the next returned: its weights come after every payload of the
// step was applied, or copied, so there is nothing to wait for here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/codec.h"
#include "common/result.h"
#include "worker/layout.h"

namespace leeway::worker {

// Where they become what travels.
class GradientTarget {
 public:
  virtual ~GradientTarget() = default;
  virtual void begin_step(float /*loss_scale*/) {}
  // Adds one of several pushes of this parameter to its sum, of which `first` begins a new one,
  // where gradients lie. Returns the sum.
  virtual std::span<const float> add_up(std::size_t parameter, std::span<const float> gradient,
                                        bool first) = 0;
  // gradient * factor of this tensor. False when an element is known to be none that can travel.
  virtual bool encode(const Layout::Tensor& tensor, std::span<const float> gradient,
                      float factor) = 0;
  // As if an element were infinite, for a target that finds that out by itself.
  virtual void poison() {}
  // Sums the squares of what will be encoded of this parameter.
  virtual void square(std::size_t parameter, std::span<const float> gradient) = 0;
  // Of all parameters, as the last step squared them.
  virtual double squares() = 0;

  // Whether encode() asks a device for it, which does it meanwhile: then publish() every part, and
  // finish() the step.
  virtual bool asynchronous() const noexcept { return false; }
  // Calls `send` when servers may read these parts; never, when an element is found not finite.
  virtual Status publish(std::vector<PartitionId> /*parts*/, std::function<void()> send) {
    send();
    return {};
  }
  // Waits for all of the step. Whether every element is finite that encode() passed.
  virtual Result<bool> finish() { return true; }
  // Committed, the step is applied times `factor`, which clips its gradient.
  virtual void end_step(bool /*committed*/, float /*factor*/) {}
  // Between steps: what was not sent yet, flat as in the layout; nothing where all is sent.
  virtual std::vector<float> residual() { return {}; }
  virtual void set_residual(std::span<const float> /*residual*/) {}
};

class HostGradients : public GradientTarget {
 public:
  // For any codec. `payloads`, one a part, are as long as the codec says, and start as zeros.
  static std::unique_ptr<HostGradients> make(const Layout& layout, const GradientCodec& codec,
                                             std::span<const std::span<std::byte>> payloads);
  // Any but top-k (TopKGradients).
  HostGradients(const Layout& layout, const GradientCodec& codec,
                std::span<const std::span<std::byte>> payloads)
      : layout_(layout), codec_(codec), payloads_(payloads) {}
  std::span<const float> add_up(std::size_t parameter, std::span<const float> gradient,
                                bool first) override;
  bool encode(const Layout::Tensor& tensor, std::span<const float> gradient, float factor) override;
  void square(std::size_t parameter, std::span<const float> gradient) override;
  double squares() override;

 protected:
  const Layout& layout_;
  const GradientCodec codec_;
  const std::span<const std::span<std::byte>> payloads_;

 private:
  std::vector<double> squares_;           // by parameter
  std::vector<std::vector<float>> sums_;  // the same; empty without accumulation
};

class GradientBuffer {
 public:
  // `accumulate` pushes of a parameter make its gradient; more than one are added up.
  // `norms`: norm() is wanted, which costs another look at every element.
  GradientBuffer(const Layout& layout, std::uint32_t accumulate, GradientTarget& target,
                 bool norms = false);

  void begin_step();

  enum class Added {
    kMore,       // further micro-batches are to come
    kComplete,   // the mean is in the memory, finite
    kNotFinite,  // complete, but an element is not finite, or beyond what the codec can say
    kTooOften,   // complete before: nothing was done
  };
  // `gradient` has as many elements as the parameter, and lies where the target takes it.
  // `poison`: as if an element were infinite.
  Added add(std::size_t parameter, std::span<const float> gradient, bool poison);

  // Of the whole step's gradient as it was pushed, in FP32 before the cast: the order of pushes
  // does not matter. 0 without `norms`. On a GPU, once the target has finished.
  double norm() const;

  // The parts whose tensors are all complete, since the last call.
  std::vector<PartitionId> take_ready();
  std::size_t ready_elements() const noexcept { return ready_elements_; }

  // Whether anything was pushed in this step.
  bool touched() const noexcept;
  // Parameters that got all their pushes, those without elements not counted.
  std::size_t complete() const noexcept { return complete_; }
  std::size_t wanted() const noexcept { return wanted_; }
  std::optional<std::size_t> first_incomplete() const noexcept;
  std::uint32_t pushes(std::size_t parameter) const noexcept { return pushes_[parameter]; }

 private:
  Added finish(std::size_t parameter, std::span<const float> gradient);

  const Layout& layout_;
  const std::uint32_t accumulate_;
  GradientTarget& target_;
  const bool norms_;
  std::size_t wanted_ = 0;
  std::size_t complete_ = 0;
  std::vector<std::uint32_t> pushes_;  // of this step, by parameter
  std::vector<std::size_t> missing_;   // by part: its tensors that are not complete
  std::vector<PartitionId> ready_;
  std::size_t ready_elements_ = 0;
  std::vector<bool> poisoned_;  // by parameter
};

}  // namespace leeway::worker
