// A ManifestStore in memory, whose contents outlive it, as a directory's would.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "storage/checkpoint_store.h"

namespace leeway::scheduler {

struct MemoryDirectory {
  std::mutex mutex;
  std::map<std::string, std::string> facts;
  std::vector<storage::Manifest> manifests;
};

class MemoryStore : public storage::ManifestStore {
 public:
  explicit MemoryStore(std::shared_ptr<MemoryDirectory> directory) : directory_(directory) {}
  Status commit(const storage::Manifest& manifest) override {
    std::lock_guard lock(directory_->mutex);
    directory_->manifests.push_back(manifest);
    return {};
  }
  Result<std::vector<storage::Manifest>> list() const override {
    std::lock_guard lock(directory_->mutex);
    return directory_->manifests;
  }
  Status forget(const std::string& id) override {
    std::lock_guard lock(directory_->mutex);
    std::erase_if(directory_->manifests, [&](const auto& m) { return m.id == id; });
    return {};
  }
  Status put(const std::string& key, const std::string& value) override {
    std::lock_guard lock(directory_->mutex);
    directory_->facts[key] = value;
    return {};
  }
  Result<std::optional<std::string>> get(const std::string& key) const override {
    std::lock_guard lock(directory_->mutex);
    const auto it = directory_->facts.find(key);
    return it == directory_->facts.end() ? std::nullopt : std::optional(it->second);
  }

 private:
  std::shared_ptr<MemoryDirectory> directory_;
};

}  // namespace leeway::scheduler
