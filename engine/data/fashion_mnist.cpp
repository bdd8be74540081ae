#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "engine/base/bad_file.hpp"
#include "engine/checksums/file_digest.hpp"
#include "engine/data/idx_header.hpp"
#include "engine/data/image/resample.hpp"
#include "engine/data/sources.hpp"

namespace troupe::engine {
namespace {

constexpr std::int64_t usual_mnist_size = 32;
constexpr std::int64_t pixels_a_side = 28;
constexpr std::size_t pixels_an_image = pixels_a_side * pixels_a_side;
constexpr std::int64_t mnist_channels = 3;
constexpr std::array<channel_scale, 1> mnist_scale{channel_scale::normalising(0.2860F, 0.3530F)};
constexpr std::int64_t class_count = 10;

struct gzip_end {
  void operator()(gzFile file) const { gzclose(file); }
};

// A file read through zlib, which hands out what is not gzipped as it is.
using gzip_file = std::unique_ptr<gzFile_s, gzip_end>;

// Bytes read, fewer only at the end or before damage.
std::size_t read_some(const gzip_file& from, std::span<std::uint8_t> to) {
  return gzfread(to.data(), 1, to.size(), from.get());
}

// Empty where no damage was met so far.
std::string damage_of(const gzip_file& from) {
  int code = Z_OK;
  const char* text = gzerror(from.get(), &code);
  if (code == Z_OK || code == Z_STREAM_END) return "";
  return code == Z_BUF_ERROR ? "the gzip data end early" : text;
}

struct idx_array {
  std::uint32_t count = 0;
  std::vector<std::uint8_t> bytes;
};

tl::unexpected<error> truncated(const std::filesystem::path& file, const gzip_file& from) {
  const auto damage = damage_of(from);
  return bad_file(file, damage.empty() ? "is truncated" : "is damaged: " + damage);
}

// `inner` are the sizes that must follow the count.
result<idx_array> read_idx(const std::filesystem::path& file,
                           std::span<const std::uint32_t> inner) {
  const gzip_file from(gzopen(file.c_str(), "rbe"));
  if (!from) return bad_file(file, "cannot be opened: " + std::generic_category().message(errno));
  gzbuffer(from.get(), 1 << 17);
  std::vector<std::uint8_t> head(idx_header_bytes(inner.size()));
  if (read_some(from, head) != head.size()) return truncated(file, from);
  const auto header = parse_idx_header(std::as_bytes(std::span(head)), inner);
  if (!header) return bad_file(file, header.error());
  const std::size_t bytes = header->bytes;
  idx_array array;
  array.count = header->count;
  array.bytes.resize(bytes + 1);  // one more than there should be: reading it checks the checksum
  const auto read = read_some(from, array.bytes);
  if (read < bytes || !damage_of(from).empty()) return truncated(file, from);
  if (read > bytes) return bad_file(file, "holds more than its header says");
  array.bytes.pop_back();
  return array;
}

struct images_of_split {
  std::vector<std::uint8_t> pixels;  // [N, 28, 28]
  std::vector<std::uint8_t> labels;  // [N]
};

// With or without ".gz", as one finds them; the name to complain about where there is neither.
std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& name) {
  if (auto plain = folder / name; std::filesystem::exists(plain)) return plain;
  return folder / (name + ".gz");
}

result<images_of_split> load_split(const std::filesystem::path& folder, const std::string& prefix) {
  const auto image_file = find_file(folder, prefix + "-images-idx3-ubyte");
  const auto label_file = find_file(folder, prefix + "-labels-idx1-ubyte");
  for (const auto& file : {image_file, label_file})
    if (!std::filesystem::exists(file))
      return fail(errc::bad_data, "fashion-mnist: there is no " + file.string() +
                                      "; install the Debian package dataset-fashion-mnist, or "
                                      "name the folder as in fashion-mnist:DIR");
  auto images = read_idx(image_file, std::array<std::uint32_t, 2>{pixels_a_side, pixels_a_side});
  if (!images) return tl::unexpected(images.error());
  auto labels = read_idx(label_file, {});
  if (!labels) return tl::unexpected(labels.error());
  if (images->count != labels->count)
    return bad_file(label_file, "holds " + std::to_string(labels->count) +
                                    " labels, but there are " + std::to_string(images->count) +
                                    " images");
  for (std::size_t i = 0; i < labels->bytes.size(); ++i)
    if (labels->bytes[i] >= class_count)
      return bad_file(label_file, "has the label " + std::to_string(labels->bytes[i]) +
                                      " at index " + std::to_string(i) + "; labels are 0 to 9");
  return images_of_split{std::move(images->bytes), std::move(labels->bytes)};
}

class fashion_mnist_dataset final : public dataset {
 public:
  fashion_mnist_dataset(images_of_split train, images_of_split test, std::int64_t image_size)
      : train_(std::move(train)),
        test_(std::move(test)),
        image_size_(image_size),
        resampler_(pixels_a_side, pixels_a_side, image_size) {}

  [[nodiscard]] std::int64_t size(split part) const override {
    return static_cast<std::int64_t>(of(part).labels.size());
  }
  [[nodiscard]] std::int64_t classes() const override { return class_count; }
  [[nodiscard]] std::vector<std::int64_t> sample_shape() const override {
    return {mnist_channels, image_size_, image_size_};
  }

  [[nodiscard]] result<batch> read(split part,
                                   std::span<const std::int64_t> indices) const override {
    return read_samples("fashion-mnist", indices, size(part),
                        [&] { return convert(part, indices); });
  }

  [[nodiscard]] result<std::string> digest() const override {
    running_digest sum(sample_digest_bytes);
    for (const auto* from : {&train_, &test_}) {
      add_number(sum, from->labels.size());
      sum.add(std::as_bytes(std::span(from->labels)));
      sum.add(std::as_bytes(std::span(from->pixels)));
    }
    return sum.digits();
  }

 private:
  [[nodiscard]] const images_of_split& of(split part) const {
    return part == split::train ? train_ : test_;
  }

  [[nodiscard]] batch convert(split part, std::span<const std::int64_t> indices) const {
    const auto& from = of(part);
    auto converted = empty_batch(static_cast<std::int64_t>(indices.size()), sample_shape());
    const auto plane = static_cast<std::size_t>(image_size_ * image_size_);
    auto* to = converted.inputs.mutable_data_ptr<float>();
    auto* labels = converted.labels.mutable_data_ptr<std::int64_t>();
    for (const auto index : indices) {
      const auto at = static_cast<std::size_t>(index);
      *labels++ = from.labels[at];
      const std::span pixels(from.pixels.data() + at * pixels_an_image, pixels_an_image);
      resampler_.run(pixels, mnist_scale, {to, plane});
      for (std::int64_t copy = 1; copy < mnist_channels; ++copy, to += plane)
        std::copy_n(to, plane, to + plane);
      to += plane;
    }
    return converted;
  }

  images_of_split train_;
  images_of_split test_;
  std::int64_t image_size_;
  resampler resampler_;
};

}  // namespace

opened_dataset open_fashion_mnist(const std::filesystem::path& folder,
                                  const dataset_options& options) {
  auto train = load_split(folder, "train");
  if (!train) return tl::unexpected(train.error());
  auto test = load_split(folder, "t10k");
  if (!test) return tl::unexpected(test.error());
  const auto size = options.image_size == 0 ? usual_mnist_size : options.image_size;
  return std::make_unique<fashion_mnist_dataset>(std::move(*train), std::move(*test), size);
}

}  // namespace troupe::engine
