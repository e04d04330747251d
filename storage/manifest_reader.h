// The manifest store as readers see it, beside a scheduler that may be writing. Any thread.
#pragma once

#include <string>
#include <vector>

#include "common/result.h"
#include "storage/checkpoint_store.h"

namespace rocksdb {
class DB;
}

namespace leeway::storage {

std::string manifest_directory(const std::string& checkpoint_dir);
std::string shard_directory(const std::string& checkpoint_dir, ServerId server);
std::string shard_directory(const std::string& checkpoint_dir, WorkerId worker);

// Every manifest in `db`, oldest first.
Result<std::vector<Manifest>> list_manifests(rocksdb::DB& db, const std::string& directory);

// The state of now. A directory without a manifest store has no checkpoints; one that does not
// exist is kNotFound.
Result<std::vector<Manifest>> read_manifests(const std::string& checkpoint_dir);

}  // namespace leeway::storage
