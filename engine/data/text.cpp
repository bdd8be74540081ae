#include <ATen/ops/empty.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "engine/checksums/file_digest.hpp"
#include "engine/data/sources.hpp"
#include "engine/data/utf8.hpp"

namespace troupe::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t byte_values = 256;
constexpr std::uintmax_t largest_text = std::uintmax_t{1} << 32;

// Where a text stops being UTF-8; nullopt: nowhere.
std::optional<std::size_t> first_bad_byte(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto length = utf8_length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

// Regular files, those of a folder by name; a link to one that is there already adds nothing.
result<std::vector<fs::path>> files_of(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  const auto add = [&files](const fs::path& file) {
    const auto real = fs::canonical(file);
    if (std::ranges::find(files, real) == files.end()) files.push_back(real);
  };
  for (const auto& path : paths) {
    if (fs::is_regular_file(path)) {
      add(path);
    } else if (fs::is_directory(path)) {
      std::vector<fs::path> inside;
      for (const auto& entry : fs::directory_iterator(path))
        if (entry.is_regular_file()) inside.push_back(entry.path());
      std::ranges::sort(inside);
      std::ranges::for_each(inside, add);
    } else {
      return fail(errc::bad_data, path.string() + ": there is no such text file or folder");
    }
  }
  return files;
}

result<std::string> read_text(const std::vector<fs::path>& files) {
  std::string text;
  for (const auto& file : files) {
    if (fs::file_size(file) + text.size() > largest_text)
      return fail(errc::bad_data, file.string() + ": the text is longer than 4 GiB");
    errno = 0;
    std::ifstream stream(file, std::ios::binary);
    const std::error_code refused(errno, std::generic_category());
    if (!stream)
      return fail(is_shortage(refused) ? errc::io_failed : errc::bad_data,
                  file.string() + ": cannot be read: " + refused.message() + remedy_of(refused));
    std::string part((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    if (const auto bad = first_bad_byte(part))
      return fail(errc::bad_data,
                  file.string() + ": is not UTF-8 text: byte " + std::to_string(*bad));
    text += part;
  }
  return text;
}

// A sample is a stretch of bytes; its labels are the bytes behind each. Samples do not overlap; the
// last tenth of the text is for testing.
class text_dataset final : public dataset {
 public:
  text_dataset(std::string source, std::string text, std::int64_t context)
      : source_(std::move(source)), text_(std::move(text)), context_(context) {
    const auto samples = (static_cast<std::int64_t>(text_.size()) - 1) / context_;
    test_ = samples > 1 ? std::max<std::int64_t>(1, samples / 10) : 0;
    train_ = samples - test_;
  }

  [[nodiscard]] std::int64_t size(split part) const override {
    return part == split::train ? train_ : test_;
  }
  [[nodiscard]] std::int64_t classes() const override { return byte_values; }
  [[nodiscard]] std::vector<std::int64_t> sample_shape() const override { return {context_}; }
  [[nodiscard]] std::int64_t labels_per_sample() const override { return context_; }

  [[nodiscard]] result<batch> read(split part,
                                   std::span<const std::int64_t> indices) const override {
    return read_samples(source_, indices, size(part), [&] { return fill(part, indices); });
  }

  [[nodiscard]] result<std::string> digest() const override {
    running_digest sum(sample_digest_bytes);
    sum.add(std::as_bytes(std::span(text_)));
    return sum.digits();
  }

 private:
  [[nodiscard]] batch fill(split part, std::span<const std::int64_t> indices) const {
    const auto shape = {static_cast<std::int64_t>(indices.size()), context_};
    batch filled{at::empty(shape, at::kLong), at::empty(shape, at::kLong)};
    auto* tokens = filled.inputs.mutable_data_ptr<std::int64_t>();
    auto* labels = filled.labels.mutable_data_ptr<std::int64_t>();
    for (const auto index : indices) {
      const auto first = (index + (part == split::test ? train_ : 0)) * context_;
      const auto* const bytes =
          reinterpret_cast<const unsigned char*>(text_.data()) + first;  // context + 1 of them
      tokens = std::copy_n(bytes, context_, tokens);
      labels = std::copy_n(bytes + 1, context_, labels);
    }
    return filled;
  }

  std::string source_;
  std::string text_;
  std::int64_t context_;
  std::int64_t train_ = 0;
  std::int64_t test_ = 0;
};

}  // namespace

opened_dataset open_text(const std::vector<std::filesystem::path>& paths,
                         const dataset_options& options) {
  return guarded(options.source, [&]() -> opened_dataset {
    if (options.context < 1)
      return fail(errc::bad_config,
                  "context = " + std::to_string(options.context) + " is less than 1");
    if (options.image_size != 0)
      return fail(errc::bad_config, options.source +
                                        ": image_size = " + std::to_string(options.image_size) +
                                        ", but it is text; leave image_size out");
    const auto files = files_of(paths);
    if (!files) return tl::unexpected(files.error());
    auto text = read_text(*files);
    if (!text) return tl::unexpected(text.error());
    if (static_cast<std::int64_t>(text->size()) < options.context + 1)
      return fail(errc::bad_data, options.source + ": " + std::to_string(text->size()) +
                                      " bytes of text are less than one sample of " +
                                      std::to_string(options.context) + " and its last label");
    return std::make_unique<text_dataset>(options.source, std::move(*text), options.context);
  });
}

}  // namespace troupe::engine
