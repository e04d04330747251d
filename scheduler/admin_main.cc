#include <iostream>

#include "scheduler/admin.h"

int main(int argc, char** argv) {
  return leeway::scheduler::run_admin(argc, argv, std::cout, std::cerr);
}
