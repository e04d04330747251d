#include "kernels/cublas_library.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace leeway::kernels {
namespace {

#define LEEWAY_TEXT_OF(x) #x
#define LEEWAY_TEXT(x) LEEWAY_TEXT_OF(x)
// The version that was compiled against: its types are ours.
constexpr const char* kName = "libcublas.so." LEEWAY_TEXT(CUBLAS_VER_MAJOR);

[[noreturn]] void loader_error() {
  const char* said = ::dlerror();
  throw std::runtime_error(std::string("cublas: ") + (said != nullptr ? said : "cannot be loaded"));
}

template <typename Function>
void resolve(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) loader_error();
}

CublasLibrary load() {
  void* library = ::dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  // Where the toolkit lay at build time, for when its folder is not in the loader's path.
  if (library == nullptr)
    library = ::dlopen((std::string(LEEWAY_CUDA_LIBS "/") + kName).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) loader_error();
  CublasLibrary table{};
  resolve(library, "cublasCreate_v2", table.create);
  resolve(library, "cublasDestroy_v2", table.destroy);
  resolve(library, "cublasSetStream_v2", table.set_stream);
  resolve(library, "cublasGemmEx", table.gemm_ex);
  resolve(library, "cublasGetStatusString", table.status_string);
  return table;
}

}  // namespace

const CublasLibrary& cublas_library() {
  static const CublasLibrary table = load();
  return table;
}

}  // namespace leeway::kernels
