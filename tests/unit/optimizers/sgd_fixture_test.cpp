#include <ATen/ops/empty.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "optimizers/optimizer.hpp"

using namespace troupe;
using namespace troupe::optimizers;

namespace {

/// What tests/parity/make_sgd_fixture.py wrote: lines by their first words, up to the values.
class fixture {
 public:
  struct run {
    std::string name, dtype;
    options chosen;
  };

  fixture() {
    std::ifstream file(TROUPE_SGD_FIXTURE);
    REQUIRE(file.good());
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string kind;
      words >> kind;
      if (kind == "case") read_case(words);
      if (kind == "shape") read_shape(words);
      if (kind == "initial" || kind == "buffer") read_values(kind, 2, words);
      if (kind == "gradient" || kind == "expected") read_values(kind, 3, words);
    }
  }

  std::vector<run> runs;
  std::vector<std::vector<std::int64_t>> shapes;

  /// Undefined when the fixture has no such line. 4-d tensors are channels_last.
  at::Tensor tensor(const std::string& key, const std::string& dtype, std::size_t param) const {
    const auto found = values_.find(key + " " + std::to_string(param));
    if (found == values_.end()) return {};
    at::Tensor made = at::empty(shapes[param], at::kDouble);
    std::istringstream words(found->second);
    std::string word;
    for (std::int64_t i = 0; i < made.numel(); ++i) {
      REQUIRE(words >> word);
      made.mutable_data_ptr<double>()[i] = std::strtod(word.c_str(), nullptr);
    }
    REQUIRE_FALSE(words >> word);
    made = made.to(dtype == "f32" ? at::kFloat : at::kDouble);
    return made.dim() == 4 ? made.contiguous(at::MemoryFormat::ChannelsLast) : made;
  }

 private:
  void read_case(std::istringstream& words) {
    run made;
    words >> made.name >> made.dtype;
    for (std::string setting; words >> setting;) {
      const std::size_t equals = setting.find('=');
      made.chosen[setting.substr(0, equals)] = std::stod(setting.substr(equals + 1));
    }
    runs.push_back(made);
  }

  void read_shape(std::istringstream& words) {
    std::size_t index = 0;
    words >> index;
    REQUIRE(index == shapes.size());
    shapes.emplace_back();
    for (std::int64_t size = 0; words >> size; words.ignore(1)) shapes.back().push_back(size);
  }

  void read_values(std::string key, int names, std::istringstream& words) {
    std::string word;
    for (int i = 0; i < names && words >> word; ++i) key += " " + word;
    std::getline(words, values_[key]);
  }

  std::map<std::string, std::string> values_;
};

bool same_values(const at::Tensor& left, const at::Tensor& right) {
  const at::Tensor a = left.contiguous(), b = right.contiguous();
  return a.nbytes() == b.nbytes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

}  // namespace

TEST_CASE("sgd does to the bit what torch.optim.SGD did in Python") {
  const fixture read;
  const optimizer sgd = built_in().find("sgd").value();
  REQUIRE(read.runs.size() == 14);
  for (const auto& run : read.runs) {
    std::vector<at::Tensor> params;
    for (std::size_t i = 0; i < read.shapes.size(); ++i)
      params.push_back(read.tensor("initial " + run.dtype, run.dtype, i));
    state kept;
    for (std::uint64_t step = 1; step <= 4; ++step) {
      const std::string number = " " + std::to_string(step);
      gradient_list gradients;
      for (std::size_t i = 0; i < params.size(); ++i)
        gradients.emplace_back(read.tensor("gradient " + run.dtype + number, run.dtype, i));
      REQUIRE(sgd.step(params, gradients, kept, complete(sgd, run.chosen).value(), step));
      for (std::size_t i = 0; i < params.size(); ++i) {
        CAPTURE(run.name, step, i);
        CHECK(same_values(params[i], read.tensor("expected " + run.name + number, run.dtype, i)));
      }
    }
    if (run.chosen.contains("momentum"))
      for (std::size_t i = 0; i < params.size(); ++i)
        CHECK(same_values(kept["momentum_buffer"][i],
                          read.tensor("buffer " + run.name, run.dtype, i)));
  }
}
