#include <exception>
#include <iostream>

#include "storage/ckpt_commands.h"

int main(int argc, char** argv) {
  try {
    return leeway::storage::run_ckpt({argv + 1, argv + argc}, std::cout, std::cerr);
  } catch (const std::exception& e) {
    std::cerr << "leeway-ckpt: " << e.what() << '\n';
    return 1;
  }
}
