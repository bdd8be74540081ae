// The main of targets that libFuzzer drives. Writes the seeds into the first folder it is given.
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/target.hpp"

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    const std::filesystem::path corpus = (*arguments)[i];
    if (!std::filesystem::is_directory(corpus)) continue;
    int number = 0;
    for (const std::string& seed : troupe::fuzz::seeds()) {
      std::ofstream(corpus / ("seed-" + std::to_string(number++)), std::ios::binary) << seed;
    }
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  troupe::fuzz::run(std::as_bytes(std::span(data, bytes)));
  return 0;
}
