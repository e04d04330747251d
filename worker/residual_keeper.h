// Brings a worker's residual (top_k_gradients.h) into checkpoints and back: DIR/worker-NNN is its
// own store there (storage/checkpoint_store.h). What no committed manifest names does not exist, so
// a death at any point costs that checkpoint at most.
//
// Called from the program's thread; a thread of its own writes, and the board says what became of
// it. The board outlives it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "storage/checkpoint_store.h"
#include "worker/board.h"
#include "worker/layout.h"

namespace leeway::worker {

class ResidualKeeper {
 public:
  // Where a partition of the plan lies in a flat buffer.
  struct Piece {
    std::size_t begin = 0;
    std::size_t elements = 0;
  };
  static std::vector<Piece> pieces_of(const rpc::Plan& plan, const std::vector<Declared>& declared,
                                      const Layout& layout);

  // `pieces` by partition. An error says what to do.
  static Result<std::unique_ptr<ResidualKeeper>> open(const std::string& checkpoint_dir,
                                                      WorkerId worker, std::vector<Piece> pieces,
                                                      Board& board);
  ~ResidualKeeper();

  // Writes it for this checkpoint, meanwhile.
  void keep(const std::string& id, std::vector<float> residual);
  // The last of this worker, for whatever checkpoints come: returns when it is on disk.
  Status keep_last(const std::string& id, std::span<const float> residual);

 private:
  struct Order {
    std::string id;
    std::vector<float> residual;
  };

  ResidualKeeper(std::unique_ptr<storage::ShardStore> store, std::vector<Piece> pieces,
                 Board& board);
  void loop(const std::stop_token& stop);
  Result<rpc::KeptResidual> write(const std::string& id, std::span<const float> residual);
  void tell(const std::string& id, Result<rpc::KeptResidual> kept);

  const std::unique_ptr<storage::ShardStore> store_;
  const std::vector<Piece> pieces_;
  Board& board_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::optional<Order> next_;  // guarded by mutex_
  bool writing_ = false;       // guarded by mutex_
  std::jthread thread_;        // last: joined first
};

// The worker's residual of a committed checkpoint, flat as in the layout.
Result<std::vector<float>> read_residual(const std::string& checkpoint_dir, const std::string& id,
                                         WorkerId worker, const std::vector<Declared>& declared,
                                         const Layout& layout);

}  // namespace leeway::worker
