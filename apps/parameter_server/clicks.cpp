#include "apps/parameter_server/clicks.hpp"

#include <ATen/ops/empty.h>

#include <optional>
#include <string_view>

#include "engine/base/random.hpp"
#include "engine/data/take_number.hpp"

namespace troupe::apps {
namespace {

using engine::splitmix64;
using engine::take_number;

constexpr std::string_view prefix = "clicks:";
constexpr std::int64_t most_fields = 1000;
constexpr std::int64_t most = std::int64_t{1} << 32;

/// From -1 to 1.
double hidden_weight(std::uint64_t seed, std::int64_t field, std::int64_t word) {
  const auto bits =
      splitmix64::combine(splitmix64::combine(seed, static_cast<std::uint64_t>(field)),
                          static_cast<std::uint64_t>(word));
  return static_cast<double>(bits >> 11) * 0x1p-52 - 1;
}

class clicks final : public engine::dataset {
 public:
  clicks(const clicks_shape& shape, std::uint64_t seed) : shape_(shape), seed_(seed) {}

  [[nodiscard]] std::int64_t size(engine::split part) const override {
    return part == engine::split::train ? shape_.count : shape_.count / 10;
  }
  [[nodiscard]] std::int64_t classes() const override { return 2; }
  [[nodiscard]] std::vector<std::int64_t> sample_shape() const override { return {shape_.fields}; }

  [[nodiscard]] result<engine::batch> read(engine::split part,
                                           std::span<const std::int64_t> indices) const override {
    const auto count = static_cast<std::int64_t>(indices.size());
    engine::batch out{at::empty({count, shape_.fields}, at::kLong), at::empty({count}, at::kLong)};
    auto* words = out.inputs.mutable_data_ptr<std::int64_t>();
    auto* labels = out.labels.mutable_data_ptr<std::int64_t>();
    for (const auto index : indices) {
      if (index < 0 || index >= size(part))
        return fail(errc::bad_data, "sample " + std::to_string(index) + " is not among the " +
                                        std::to_string(size(part)) + " clicks");
      *labels++ = fill(part, index, words);
      words += shape_.fields;
    }
    return out;
  }

 private:
  std::int64_t fill(engine::split part, std::int64_t index, std::int64_t* words) const {
    const auto stream = splitmix64::combine(seed_, part == engine::split::train ? 1 : 2);
    splitmix64 random(splitmix64::combine(stream, static_cast<std::uint64_t>(index)));
    double sum = 0;
    for (std::int64_t field = 0; field < shape_.fields; ++field) {
      const double even = static_cast<double>(random.next() >> 11) * 0x1p-53;  // [0, 1)
      words[field] =
          static_cast<std::int64_t>(static_cast<double>(shape_.rows) * even * even * even);
      sum += hidden_weight(seed_, field, words[field]);
    }
    return sum > 0 ? 1 : 0;
  }

  const clicks_shape shape_;
  const std::uint64_t seed_;
};

}  // namespace

bool is_clicks(const std::string& source) {
  return source.starts_with(prefix);
}

result<clicks_shape> parse_clicks(const std::string& source) {
  std::string_view text(source);
  text.remove_prefix(prefix.size());
  clicks_shape shape;
  const auto fields = take_number(text, ':', most_fields);
  const auto rows = fields ? take_number(text, ':', most) : std::nullopt;
  const auto count = rows && !text.empty() ? take_number(text, ':', most) : shape.count;
  if (!fields || !rows || !count || !text.empty())
    return fail(errc::bad_config,
                "'" + source + "' is not clicks:FIELDS:ROWS[:COUNT] with numbers from 1 to " +
                    std::to_string(most_fields) + ", " + std::to_string(most) + " and " +
                    std::to_string(most));
  return clicks_shape{*fields, *rows, *count};
}

std::unique_ptr<engine::dataset> open_clicks(const clicks_shape& shape, std::uint64_t seed) {
  return std::make_unique<clicks>(shape, seed);
}

}  // namespace troupe::apps
