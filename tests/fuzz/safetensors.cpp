// The header of safetensors files: what it takes lies within the file.
#include "engine/state/safetensors_header.hpp"
#include "tests/fuzz/target.hpp"

namespace troupe::fuzz {
namespace {

std::string file_of(const engine::safetensors_header& header, std::size_t data_bytes) {
  return engine::format_safetensors_header(header) + std::string(data_bytes, '\0');
}

}  // namespace

std::vector<std::string> seeds() {
  engine::safetensors_header two;
  two.tensors = {{"weight", at::ScalarType::Float, {2, 3}, 0, 24},
                 {"bias", at::ScalarType::Long, {1}, 24, 32}};
  const std::string metadata = R"({"__metadata__":{"format":"pt"}})";
  std::string length(8, '\0');
  length.front() = static_cast<char>(metadata.size());
  return {file_of({}, 0), file_of(two, 32), length + metadata};
}

void run(std::span<const std::byte> input) {
  const auto header = engine::parse_safetensors_header(input);
  if (!header) return require(!header.error().text.empty(), "a refusal says why");
  require(header->data_begin <= input.size(), "the data begin within the file");
  for (const auto& tensor : header->tensors) {
    require(tensor.begin <= tensor.end && tensor.end <= input.size() - header->data_begin,
            "a tensor lies within the file");
  }
}

}  // namespace troupe::fuzz
