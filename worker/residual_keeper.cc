#include "worker/residual_keeper.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/log.h"

namespace leeway::worker {
namespace {

std::map<std::string, std::size_t> parameters_by_name(const std::vector<Declared>& declared) {
  std::map<std::string, std::size_t> by_name;
  for (std::size_t i = 0; i < declared.size(); ++i) by_name.emplace(declared[i].name, i);
  return by_name;
}

}  // namespace

std::vector<ResidualKeeper::Piece> ResidualKeeper::pieces_of(const rpc::Plan& plan,
                                                             const std::vector<Declared>& declared,
                                                             const Layout& layout) {
  const auto parameters = parameters_by_name(declared);
  std::vector<Piece> pieces;
  for (const rpc::Partition& partition : plan.partitions) {
    const auto& name = plan.tensors[static_cast<std::size_t>(partition.tensor)].name;
    const Layout::Tensor& tensor = layout.tensors()[parameters.at(name)];
    pieces.push_back({tensor.begin + static_cast<std::size_t>(partition.first),
                      static_cast<std::size_t>(partition.elements)});
  }
  return pieces;
}

Result<std::unique_ptr<ResidualKeeper>> ResidualKeeper::open(const std::string& checkpoint_dir,
                                                             WorkerId worker,
                                                             std::vector<Piece> pieces,
                                                             Board& board) {
  const auto unusable = [](const Error& error) {
    return fail(error.code,
                fmt::format("{}; with gradient_codec = topk every worker writes into the job's "
                            "checkpoint directory: mount it on this host, or use another codec",
                            error.message));
  };
  // The scheduler made its part of it before anybody joined. A store in a directory of this host's
  // own would hold residuals that nobody finds.
  if (const auto shared = storage::CheckpointReader::open(checkpoint_dir); !shared)
    return unusable(shared.error());
  auto store = storage::ShardStore::open(checkpoint_dir, worker);
  if (!store) return unusable(store.error());
  return std::unique_ptr<ResidualKeeper>(
      new ResidualKeeper(std::move(*store), std::move(pieces), board));
}

ResidualKeeper::ResidualKeeper(std::unique_ptr<storage::ShardStore> store,
                               std::vector<Piece> pieces, Board& board)
    : store_(std::move(store)),
      pieces_(std::move(pieces)),
      board_(board),
      thread_([this](const std::stop_token& stop) {
        pthread_setname_np(pthread_self(), "checkpoint");
        loop(stop);
      }) {}

ResidualKeeper::~ResidualKeeper() {
  thread_.request_stop();
  changed_.notify_all();
}

void ResidualKeeper::keep(const std::string& id, std::vector<float> residual) {
  {
    // One that still waits here is of a checkpoint that was given up: there is one at a time.
    const std::lock_guard lock(mutex_);
    next_ = Order{id, std::move(residual)};
  }
  changed_.notify_all();
}

Status ResidualKeeper::keep_last(const std::string& id, std::span<const float> residual) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !next_ && !writing_; });
  }
  auto kept = write(id, residual);
  if (!kept) return tl::unexpected(std::move(kept).error());
  const std::lock_guard lock(board_.mutex);
  board_.report.residuals[id] = *std::move(kept);
  return {};
}

void ResidualKeeper::loop(const std::stop_token& stop) {
  while (true) {
    Order order;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return next_.has_value(); })) return;
      order = *std::exchange(next_, std::nullopt);
      writing_ = true;
    }
    auto kept = write(order.id, order.residual);
    if (kept)
      if (auto s = store_->prune_uncommitted(order.id); !s)
        log::warning("old residuals stay on disk: {}", s.error().message);
    tell(order.id, std::move(kept));
    {
      const std::lock_guard lock(mutex_);
      writing_ = false;
    }
    changed_.notify_all();
  }
}

// What came of the checkpoint before is settled by now.
void ResidualKeeper::tell(const std::string& id, Result<rpc::KeptResidual> kept) {
  rpc::KeptResidual told;
  if (kept)
    told = *std::move(kept);
  else
    told.error = kept.error().message;
  const std::lock_guard lock(board_.mutex);
  board_.report.residuals = {{id, std::move(told)}};
}

Result<rpc::KeptResidual> ResidualKeeper::write(const std::string& id,
                                                std::span<const float> residual) {
  auto writer = store_->begin(id, residual.size_bytes());
  if (!writer) return tl::unexpected(std::move(writer).error());
  for (std::size_t p = 0; p < pieces_.size(); ++p)
    if (auto s = (*writer)->add(PartitionId(static_cast<std::uint32_t>(p)),
                                storage::ArrayKind::kResidual,
                                residual.subspan(pieces_[p].begin, pieces_[p].elements));
        !s)
      return tl::unexpected(std::move(s).error());
  auto finished = (*writer)->finish();
  if (!finished) return tl::unexpected(std::move(finished).error());
  rpc::KeptResidual kept;
  kept.digest = finished->digest;
  kept.bytes = static_cast<std::int64_t>(finished->bytes);
  return kept;
}

Result<std::vector<float>> read_residual(const std::string& checkpoint_dir, const std::string& id,
                                         WorkerId worker, const std::vector<Declared>& declared,
                                         const Layout& layout) {
  const auto damaged = [&](const Error& error) {
    return fail(error.code, fmt::format("the residual of worker {}: {}; resume an older checkpoint "
                                        "(`leeway-ckpt verify {}` says which are whole)",
                                        worker.value(), error.message, checkpoint_dir));
  };
  const auto reader = storage::CheckpointReader::open(checkpoint_dir);
  if (!reader) return damaged(reader.error());
  const auto manifest = (*reader)->manifest(id);
  if (!manifest) return damaged(manifest.error());
  // That the scheduler says so does not make it the directory that the scheduler has.
  const auto another = [&](const std::string& what) {
    return damaged({Code::kNotFound,
                    fmt::format("checkpoint {} in {} has no {}: is this the directory that the "
                                "scheduler has?",
                                id, checkpoint_dir, what)});
  };
  const auto saved = manifest->workers.find(worker.value());
  if (saved == manifest->workers.end() || !saved->second.residual)
    return another("residual of this worker");
  const auto parameters = parameters_by_name(declared);
  for (const Declared& parameter : declared) {
    const auto tensor =
        std::ranges::find(manifest->tensors, parameter.name, &storage::ManifestTensor::name);
    if (tensor == manifest->tensors.end() || tensor->shape != parameter.shape)
      return another(
          fmt::format("tensor '{}' of shape {}", parameter.name, to_string(parameter.shape)));
  }
  if (manifest->tensors.size() != declared.size()) return another("model of this size");
  std::vector<float> out(layout.elements());
  for (std::uint32_t t = 0; t < manifest->tensors.size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[parameters.at(manifest->tensors[t].name)];
    if (auto s = (*reader)->read_residual(*manifest, worker, t,
                                          std::span(out).subspan(tensor.begin, tensor.elements));
        !s)
      return damaged(s.error());
  }
  return out;
}

}  // namespace leeway::worker
