#include "transport/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace leeway::transport {
namespace {

// FNV-1a: chance collisions are what matters here, the connection itself checks the user.
class Hash {
 public:
  void add(const void* data, std::size_t size) noexcept {
    for (std::size_t i = 0; i < size; ++i)
      value_ = (value_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

bool add_namespace(Hash& hash, const char* path) {
  struct stat status {};
  if (stat(path, &status) != 0) return false;
  const std::uint64_t where[] = {status.st_dev, status.st_ino};
  hash.add(where, sizeof where);
  return true;
}

}  // namespace

std::uint64_t host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) return 0;
  Hash hash;
  hash.add(boot.data(), boot.size());
  if (!add_namespace(hash, "/proc/self/ns/net") || !add_namespace(hash, "/proc/self/ns/user"))
    return 0;
  const std::uint64_t user = geteuid();
  hash.add(&user, sizeof user);
  return hash.value();
}

}  // namespace leeway::transport
