#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

#include "engine/base/random.hpp"
#include "engine/data/sources.hpp"
#include "engine/data/take_number.hpp"

namespace troupe::engine {
namespace {

constexpr std::int64_t default_count = 1000;
constexpr std::int64_t largest_number = std::int64_t{1} << 40;
constexpr std::size_t windows = std::size_t{1} << 20;          // places an image may begin
constexpr std::int64_t largest_image = std::int64_t{1} << 28;  // values, 1 GiB
constexpr std::int64_t largest_classes = std::int64_t{1} << 24;

struct synthetic_shape {
  std::vector<std::int64_t> sample;  // [C, H, W]
  std::int64_t classes = 0;
  std::int64_t count = default_count;
};

std::optional<synthetic_shape> parse(std::string_view text) {
  synthetic_shape shape;
  for (const char separator : {'x', 'x', ':'}) {
    const auto size = take_number(text, separator, largest_number);
    if (!size || text.empty()) return std::nullopt;
    shape.sample.push_back(*size);
  }
  const auto classes = take_number(text, ':', largest_number);
  if (!classes) return std::nullopt;
  shape.classes = *classes;
  if (text.empty()) return shape;
  const auto count = take_number(text, ':', largest_number);
  if (!count || !text.empty()) return std::nullopt;
  shape.count = *count;
  return shape;
}

// Why it cannot be made; empty: it can.
std::string too_large(const synthetic_shape& shape) {
  std::int64_t most = largest_image;
  for (const auto size : shape.sample) most /= size;
  if (most == 0)
    return "an image of more than " + std::to_string(largest_image) + " values is too large";
  if (shape.classes > largest_classes)
    return std::to_string(shape.classes) + " classes are too many; allowed: 1 to " +
           std::to_string(largest_classes);
  return "";
}

// Box and Muller's transform: two uniform numbers give two normal ones.
void fill_normal(std::span<float> values, splitmix64& random) {
  constexpr float scale = 0x1p-24F;
  for (std::size_t i = 0; i < values.size(); i += 2) {
    const auto bits = random.next();
    const auto above_zero = (static_cast<float>(bits >> 40) + 1) * scale;  // (0, 1]
    const auto turn = static_cast<float>(bits & 0xffffff) * scale;         // [0, 1)
    const auto radius = std::sqrt(-2 * std::log(above_zero));
    const auto angle = 2 * std::numbers::pi_v<float> * turn;
    values[i] = radius * std::cos(angle);
    if (i + 1 < values.size()) values[i + 1] = radius * std::sin(angle);
  }
}

std::size_t values_of(const synthetic_shape& shape) {
  return static_cast<std::size_t>(shape.sample[0] * shape.sample[1]) *
         static_cast<std::size_t>(shape.sample[2]);
}

// Reading must cost no more than a copy, or it would be what a benchmark measures: every image is a
// window into one stretch of noise.
class synthetic_dataset final : public dataset {
 public:
  synthetic_dataset(std::string source, synthetic_shape shape, std::uint64_t seed)
      : source_(std::move(source)),
        shape_(std::move(shape)),
        seed_(seed),
        noise_(values_of(shape_) + windows) {
    splitmix64 random(seed);
    fill_normal(noise_, random);
  }

  [[nodiscard]] std::int64_t size(split part) const override {
    return part == split::train ? shape_.count : std::max<std::int64_t>(1, shape_.count / 10);
  }
  [[nodiscard]] std::int64_t classes() const override { return shape_.classes; }
  [[nodiscard]] std::vector<std::int64_t> sample_shape() const override { return shape_.sample; }

  [[nodiscard]] result<batch> read(split part,
                                   std::span<const std::int64_t> indices) const override {
    return read_samples(source_, indices, size(part), [&] { return fill(part, indices); });
  }

 private:
  [[nodiscard]] batch fill(split part, std::span<const std::int64_t> indices) const {
    auto filled = empty_batch(static_cast<std::int64_t>(indices.size()), shape_.sample);
    auto* images = filled.inputs.mutable_data_ptr<float>();
    auto* labels = filled.labels.mutable_data_ptr<std::int64_t>();
    const auto values = values_of(shape_);
    const auto split_seed = splitmix64::combine(seed_, static_cast<std::uint64_t>(part));
    for (const auto index : indices) {
      splitmix64 random(splitmix64::combine(split_seed, static_cast<std::uint64_t>(index)));
      *labels++ =
          static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(shape_.classes)));
      images = std::copy_n(noise_.begin() + static_cast<std::ptrdiff_t>(random.below(windows)),
                           values, images);
    }
    return filled;
  }

  std::string source_;
  synthetic_shape shape_;
  std::uint64_t seed_;
  std::vector<float> noise_;
};

}  // namespace

opened_dataset open_synthetic(std::string_view shape, const dataset_options& options) {
  auto parsed = parse(shape);
  if (!parsed)
    return fail(errc::bad_config, "\"" + options.source +
                                      "\" is not synthetic:CxHxW:CLASSES[:COUNT] with numbers of "
                                      "1 to " +
                                      std::to_string(largest_number) +
                                      ", as in synthetic:3x128x128:1000");
  if (const auto why = too_large(*parsed); !why.empty())
    return fail(errc::bad_config, "\"" + options.source + "\": " + why);
  if (auto sound = check_fixed_size(options, parsed->sample[1], parsed->sample[2]); !sound)
    return tl::unexpected(sound.error());
  return guarded(options.source, [&]() -> opened_dataset {
    return std::make_unique<synthetic_dataset>(options.source, std::move(*parsed), options.seed);
  });
}

}  // namespace troupe::engine
