// What `leeway-ckpt` does, on any stream. One thread.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "common/result.h"

namespace leeway::storage {

struct CkptOptions {
  std::string directory;
  std::string checkpoint;  // "" = the newest; verify: all
  std::string output;      // export: the safetensors file
  bool digest = false;     // inspect: the digest alone
  bool json = false;
};

Status list_checkpoints(const CkptOptions& options, std::ostream& out);
// Prints a line for each checkpoint; the error is the first damage, all damages are in the lines.
Status verify_checkpoints(const CkptOptions& options, std::ostream& out);
Status inspect_checkpoint(const CkptOptions& options, std::ostream& out);
Status export_checkpoint(const CkptOptions& options, std::ostream& out);

// The whole program: arguments after its name, exit status.
int run_ckpt(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace leeway::storage
