#include "actors/messages/parameter_server/tensors.hpp"

#include <ATen/ops/empty.h>

#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>

namespace troupe::actors {
namespace {

void require(bool holds) {
  if (!holds) throw std::invalid_argument("a directory of parameters is malformed");
}

/// Reads a directory's numbers and names one after another, and none beyond their end.
class directory_reader {
 public:
  explicit directory_reader(const packed_directory& from)
      : numbers_(from.numbers.const_data_ptr<std::int64_t>(),
                 static_cast<std::size_t>(from.numbers.numel())),
        names_(reinterpret_cast<const char*>(from.names.const_data_ptr<std::uint8_t>()),
               static_cast<std::size_t>(from.names.numel())) {}

  [[nodiscard]] bool done() const { return numbers_.empty() && names_.empty(); }
  std::int64_t number(std::int64_t least, std::int64_t most) {
    require(!numbers_.empty() && numbers_.front() >= least && numbers_.front() <= most);
    const auto taken = numbers_.front();
    numbers_ = numbers_.subspan(1);
    return taken;
  }
  std::string name() {
    const auto bytes =
        static_cast<std::size_t>(number(0, static_cast<std::int64_t>(names_.size())));
    const auto taken = names_.first(bytes);
    names_ = names_.subspan(bytes);
    return {taken.data(), taken.size()};
  }

 private:
  std::span<const std::int64_t> numbers_;
  std::span<const char> names_;
};

}  // namespace

packed_directory packed_directory::pack(const std::vector<engine::parameter_entry>& parameters) {
  std::string names;
  std::vector<std::int64_t> numbers;
  for (const auto& [name, shape, dtype, by_rows, first_row] : parameters) {
    names += name;
    numbers.insert(numbers.end(), {static_cast<std::int64_t>(name.size()), dtype, by_rows ? 1 : 0,
                                   first_row, static_cast<std::int64_t>(shape.size())});
    numbers.insert(numbers.end(), shape.begin(), shape.end());
  }
  packed_directory packed{at::empty({static_cast<std::int64_t>(names.size())}, at::kByte),
                          at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong)};
  if (!names.empty()) std::memcpy(packed.names.mutable_data_ptr(), names.data(), names.size());
  if (!numbers.empty())
    std::memcpy(packed.numbers.mutable_data_ptr(), numbers.data(),
                numbers.size() * sizeof(std::int64_t));
  return packed;
}

std::vector<engine::parameter_entry> packed_directory::unpack() const {
  require(names.defined() && names.scalar_type() == at::kByte && names.is_contiguous());
  require(numbers.defined() && numbers.scalar_type() == at::kLong && numbers.is_contiguous());
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  std::vector<engine::parameter_entry> all;
  directory_reader in(*this);
  while (!in.done()) {
    engine::parameter_entry each{.name = in.name(), .shape = {}};
    each.dtype = static_cast<std::int32_t>(
        in.number(0, static_cast<std::int64_t>(at::ScalarType::NumOptions) - 1));
    each.by_rows = in.number(0, 1) == 1;
    each.first_row = in.number(0, most);
    each.shape.resize(static_cast<std::size_t>(in.number(0, numbers.numel())));
    for (auto& size : each.shape) size = in.number(0, most);
    all.push_back(std::move(each));
  }
  return all;
}

}  // namespace troupe::actors
