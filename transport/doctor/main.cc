#include <iostream>

#include "transport/doctor/doctor.h"

int main(int argc, char** argv) {
  return leeway::doctor::run_doctor({argv + 1, argv + argc}, std::cout, std::cerr);
}
