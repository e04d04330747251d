// Writes the records of one shard into a table file of its own, which is handed to the store's
// database whole. Used by one thread; holds the database, so that it may outlive the store.
#pragma once

#include <memory>
#include <string>

#include "common/result.h"
#include "storage/checkpoint_store.h"
#include "storage/database.h"

namespace leeway::storage {

// `file` lies on the file system of `database`; nothing is left there when the writer is gone.
Result<std::unique_ptr<ShardWriter>> open_shard_writer(std::shared_ptr<Database> database,
                                                       const std::string& file,
                                                       const std::string& checkpoint_id);

}  // namespace leeway::storage
