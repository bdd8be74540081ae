// The main of targets that need no fuzzer's compiler: tries the seeds, then changes them at random.
//
//   fuzz_NAME [SECONDS [RANDOM_SEED]]     tries inputs for so long (2)
//   fuzz_NAME FILE                        tries one input, as when libFuzzer found something
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/target.hpp"

namespace {

using namespace troupe::fuzz;

class mutator {
 public:
  mutator(std::vector<std::string> seeds, unsigned seed)
      : seeds_(std::move(seeds)), random_(seed) {}

  std::string next() {
    std::string out = pick();
    for (std::size_t changes = below(5); changes > 0; --changes) change(out);
    return out;
  }

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  const std::string& pick() { return seeds_[below(seeds_.size())]; }

  void change(std::string& text) {
    const std::size_t at = below(text.size());
    switch (below(7)) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        if (!text.empty()) text[at] = static_cast<char>(random_());
        break;
      case 2:
        text.resize(at);
        break;
      case 3:
        text.insert(at, text.substr(below(text.size()), below(64)));
        break;
      case 4:
        text.erase(at, below(16));
        break;
      case 5: {  // a number that is special somewhere
        constexpr std::uint64_t special[] = {
            0,           1,           0x7f,        0xff,
            0xffff,      0x7fffffff,  0xffffffff,  ~std::uint64_t{0},
            1ULL << 32U, 1ULL << 63U, 1ULL << 20U, 1ULL << 16U};
        const std::uint64_t number = special[below(std::size(special))];
        const std::size_t bytes = std::min(text.size() - at, std::size_t{1} << below(4));
        text.replace(at, bytes, reinterpret_cast<const char*>(&number), bytes);
        break;
      }
      default: {
        const std::string& other = pick();
        text = text.substr(0, at) + other.substr(below(other.size()));
      }
    }
  }

  const std::vector<std::string> seeds_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count == 2 && std::filesystem::is_regular_file(arguments[1])) {
    std::ifstream file(arguments[1], std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(file), {}};
    run(bytes_of(input));
    return 0;
  }
  const std::chrono::duration<double> time(count > 1 ? std::atof(arguments[1]) : 2.0);
  const unsigned seed = count > 2 ? static_cast<unsigned>(std::atoi(arguments[2])) : 1;
  for (const std::string& each : seeds()) run(bytes_of(each));
  mutator inputs(seeds(), seed);
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t tried = 0;
  for (; std::chrono::steady_clock::now() - start < time; ++tried) {
    const std::string input = inputs.next();
    run(bytes_of(input));
  }
  std::printf("random seed %u: %llu inputs\n", seed, static_cast<unsigned long long>(tried));
  return tried > 0 ? 0 : 1;
}
