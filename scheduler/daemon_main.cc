#include <iostream>

#include "scheduler/daemon.h"

int main(int argc, char** argv) {
  return leeway::scheduler::run_daemon(argc, argv, std::cout, std::cerr);
}
