#include "tests/multiprocess/checkpoints/same_weights.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bytes_of.hpp"

namespace troupe::tests {
namespace {

struct saved_tensor {
  std::string type;
  std::vector<std::int64_t> shape;
  std::string_view bytes;
};

/// Of a file's bytes, which have to live as long.
std::map<std::string, saved_tensor> tensors_in(std::string_view file) {
  std::uint64_t length = 0;
  REQUIRE(file.size() > sizeof length);
  std::memcpy(&length, file.data(), sizeof length);
  REQUIRE(length <= file.size() - sizeof length);
  const auto data = file.substr(sizeof length + length);
  const auto header = nlohmann::json::parse(file.substr(sizeof length, length));
  std::map<std::string, saved_tensor> all;
  std::uint64_t filled = 0;
  for (const auto& [name, about] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = about.at("data_offsets").at(0).get<std::uint64_t>();
    const auto end = about.at("data_offsets").at(1).get<std::uint64_t>();
    REQUIRE(begin <= end);
    REQUIRE(end <= data.size());
    filled += end - begin;
    all[name] = {about.at("dtype").get<std::string>(),
                 about.at("shape").get<std::vector<std::int64_t>>(),
                 data.substr(begin, end - begin)};
  }
  REQUIRE(filled == data.size());
  return all;
}

template <class Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number out{};
  std::memcpy(&out, &bytes[at], sizeof out);
  return out;
}

/// NaN equals nothing, and 0 equals -0.
template <class Number>
bool have_same_numbers(std::string_view one, std::string_view other) {
  for (std::size_t at = 0; at < one.size(); at += sizeof(Number))
    if (!(number_at<Number>(one, at) == number_at<Number>(other, at))) return false;
  return true;
}

/// Of a type of 16 bits, whose infinity has these.
bool has_nan(std::string_view bytes, unsigned infinity) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint16_t))
    if ((number_at<std::uint16_t>(bytes, at) & 0x7FFFU) > infinity) return true;
  return false;
}

bool are_equal(const saved_tensor& one, const saved_tensor& other) {
  if (one.type != other.type || one.shape != other.shape) return false;
  if (one.bytes.size() != other.bytes.size()) return false;
  if (one.type == "F64") return have_same_numbers<double>(one.bytes, other.bytes);
  if (one.type == "F32") return have_same_numbers<float>(one.bytes, other.bytes);
  if (one.type == "F16" && has_nan(one.bytes, 0x7C00)) return false;
  if (one.type == "BF16" && has_nan(one.bytes, 0x7F80)) return false;
  return one.bytes == other.bytes;
}

}  // namespace

void check_same_weights(const std::filesystem::path& one, const std::filesystem::path& other) {
  const auto bytes = bytes_of(one), other_bytes = bytes_of(other);
  const auto tensors = tensors_in(bytes), others = tensors_in(other_bytes);
  REQUIRE(tensors.size() == others.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    const auto found = others.find(name);
    REQUIRE(found != others.end());
    CHECK(are_equal(tensor, found->second));
  }
}

}  // namespace troupe::tests
