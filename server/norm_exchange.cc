#include "server/norm_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/result.h"

namespace leeway::server {

NormExchange::NormExchange(const NormConfig& config, bool any_clock)
    : config_(config), any_clock_(any_clock), tensors_(config.tensors.size()) {
  for (std::size_t t = 0; t < config.tensors.size(); ++t) {
    index_.emplace(config.tensors[t].id, t);
    for (const LocalPartition part : config.tensors[t].parts) tensor_of_.emplace(part, t);
  }
}

void NormExchange::begin(Clock clock) {
  if (tensors_.empty()) return;
  runs_ = true;
  clock_ = clock;
  own_left_ = tensors_.size();
  missing_ = 0;
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const NormConfig::Tensor& config = config_.tensors[t];
    tensors_[t] = {.parts_left = config.parts.size(), .missing = config.others};
    missing_ += config.others.size();
  }
  for (auto& [from, early] : std::exchange(early_, {})) {
    if (early.clock > clock_ && !any_clock_)
      early_.emplace(from, std::move(early));
    else if (early.clock == clock_ || any_clock_)
      for (const auto& [tensor, sums] : early.sums) add(tensor, from, sums);
  }
}

void NormExchange::end() {
  if (runs_) clock_ = clock_.next();
  runs_ = false;
}

bool NormExchange::add(std::size_t t, ServerId from, const NormSums& sums) {
  Tensor& tensor = tensors_[t];
  const auto missing = std::ranges::find(tensor.missing, from);
  if (missing == tensor.missing.end()) return false;
  tensor.missing.erase(missing);
  tensor.all.add(sums);
  if (--missing_ == 0) since_.reset();
  return true;
}

void NormExchange::step_if_whole(std::size_t t, Effects& effects) const {
  const Tensor& tensor = tensors_[t];
  if (tensor.parts_left == 0 && tensor.missing.empty())
    effects.emplace_back(StepTensor{config_.tensors[t].parts, tensor.all});
}

void NormExchange::part_summed(LocalPartition partition, const NormSums& sums, TimePoint now,
                               Effects& effects) {
  const std::size_t t = tensor_of_.at(partition);
  Tensor& tensor = tensors_[t];
  LEEWAY_CHECK(runs_ && tensor.parts_left > 0);
  tensor.own.add(sums);
  if (--tensor.parts_left > 0) return;
  tensor.all.add(tensor.own);
  const bool last = --own_left_ == 0;
  if (last) send(effects);
  step_if_whole(t, effects);
  if (last && missing_ > 0) {
    since_ = now;
    ask_for_tick(effects);
  }
}

void NormExchange::send(Effects& effects) const {
  std::map<ServerId, transport::Norms> out;
  for (std::size_t t = 0; t < tensors_.size(); ++t)
    for (const ServerId other : config_.tensors[t].others)
      out[other].entries.push_back({config_.tensors[t].id, tensors_[t].own});
  for (auto& [to, norms] : out) {
    norms.clock = clock_;
    effects.emplace_back(SendNorms{to, std::move(norms)});
  }
}

void NormExchange::receive(ServerId from, const transport::Norms& norms, Effects& effects) {
  const auto ignore = [&](const std::string& why) {
    effects.emplace_back(Ignore{fmt::format("norms of clock {} from server.{}, {}",
                                            norms.clock.value(), from.value(), why)});
  };
  if (norms.clock < clock_) return;  // a repetition
  const bool now = runs_ && (norms.clock == clock_ || any_clock_);
  Early* early = nullptr;
  if (!now) {
    early = &early_.try_emplace(from, Early{norms.clock, {}}).first->second;
    if (early->clock != norms.clock)
      return ignore(fmt::format("whose norms of clock {} were not used yet", early->clock.value()));
  }
  for (const transport::Norms::Entry& entry : norms.entries) {
    const auto known = index_.find(entry.tensor);
    if (known == index_.end() ||
        std::ranges::count(config_.tensors[known->second].others, from) == 0)
      return ignore(fmt::format("of tensor {}, which the two do not share", entry.tensor.value()));
    if (early != nullptr)
      early->sums.try_emplace(known->second, entry.sums);
    else if (add(known->second, from, entry.sums))
      step_if_whole(known->second, effects);
  }
}

bool NormExchange::begun_elsewhere(Clock clock) const {
  return std::ranges::any_of(early_,
                             [&](const auto& entry) { return entry.second.clock == clock; });
}

// One tick is under way at most.
void NormExchange::ask_for_tick(Effects& effects) {
  if (std::exchange(armed_, true)) return;
  tick_at_ = *since_ + config_.patience;
  effects.emplace_back(WakeAt{tick_at_});
}

void NormExchange::tick(TimePoint now, Effects& effects) {
  if (!armed_ || now < tick_at_) return;
  armed_ = false;
  if (!since_) return;
  if (now - *since_ < config_.patience) return ask_for_tick(effects);
  effects.emplace_back(
      Fault{fmt::format("the update of clock {} waited {:.1f} s for {}", clock_.value(),
                        std::chrono::duration<double>(now - *since_).count(), whom())});
}

std::string NormExchange::whom() const {
  std::map<ServerId, std::string> tensors;
  for (std::size_t t = 0; t < tensors_.size(); ++t)
    for (const ServerId server : tensors_[t].missing)
      tensors.try_emplace(server, config_.tensors[t].name);
  std::string text;
  for (const auto& [server, tensor] : tensors)
    text += fmt::format("{}server.{} (its part of the norms of '{}')", text.empty() ? "" : ", ",
                        server.value(), tensor);
  return text;
}

std::optional<std::string> NormExchange::waiting_since(TimePoint then) const {
  if (!since_ || *since_ > then) return std::nullopt;
  return fmt::format("this server waits with the update of clock {} for {}", clock_.value(),
                     whom());
}

}  // namespace leeway::server
