#include "engine/state/safetensors.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/checksums/file_digest.hpp"
#include "engine/data/sources.hpp"

namespace troupe::engine {
namespace {

constexpr std::int64_t largest_label = (std::int64_t{1} << 31) - 1;

using tensor_map = std::map<std::string, at::Tensor>;

// One split: both tensors, or both undefined.
struct pair_of_tensors {
  at::Tensor images;  // [N, C, H, W] f32, contiguous
  at::Tensor labels;  // [N] i64, contiguous
};

std::string shape_text(const at::Tensor& tensor) {
  return c10::str(tensor.sizes(), " ", tensor.scalar_type());
}

result<void> check_labels(const at::Tensor& labels, const std::string& name) {
  const auto* values = labels.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < labels.numel(); ++i)
    if (values[i] < 0 || values[i] > largest_label)
      return fail(errc::bad_data, "tensor \"" + name + "\" has the label " +
                                      std::to_string(values[i]) + " at index " + std::to_string(i) +
                                      "; labels are 0 to " + std::to_string(largest_label));
  return {};
}

result<pair_of_tensors> take_pair(const tensor_map& tensors, const std::string& prefix) {
  const auto images = tensors.find(prefix + "images");
  const auto labels = tensors.find(prefix + "labels");
  if (images == tensors.end() || labels == tensors.end())
    return fail(errc::bad_data, "has no tensor \"" + prefix +
                                    (images == tensors.end() ? "images" : "labels") + "\"");
  const pair_of_tensors pair{images->second, labels->second};
  if (pair.images.dim() != 4 || pair.images.scalar_type() != at::kFloat || pair.images.numel() == 0)
    return fail(errc::bad_data, "tensor \"" + images->first + "\" is " + shape_text(pair.images) +
                                    "; it must be [N, C, H, W] Float and not empty");
  if (pair.labels.dim() != 1 || pair.labels.scalar_type() != at::kLong)
    return fail(errc::bad_data, "tensor \"" + labels->first + "\" is " + shape_text(pair.labels) +
                                    "; it must be [N] Long");
  if (pair.images.size(0) != pair.labels.size(0))
    return fail(errc::bad_data,
                "has " + std::to_string(pair.images.size(0)) + " \"" + images->first + "\" but " +
                    std::to_string(pair.labels.size(0)) + " \"" + labels->first + "\"");
  if (auto sound = check_labels(pair.labels, labels->first); !sound)
    return tl::unexpected(sound.error());
  return pair;
}

// Of a large image so many parts, all over it: in another image these are others too.
void add_image(running_digest& to, std::span<const std::byte> image) {
  constexpr std::size_t parts = 16, part_bytes = 256;
  if (image.size() <= parts * part_bytes) return to.add(image);
  for (std::size_t i = 0; i < parts; ++i)
    to.add(image.subspan(i * (image.size() / parts), part_bytes));
}

void add_pair(running_digest& to, const pair_of_tensors& pair) {
  add_number(to, pair.labels.defined() ? static_cast<std::uint64_t>(pair.labels.numel()) : 0);
  if (!pair.labels.defined()) return;
  for (const auto size : pair.images.sizes()) add_number(to, static_cast<std::uint64_t>(size));
  const auto bytes_of = [](const at::Tensor& of) {
    return std::span(static_cast<const std::byte*>(of.const_data_ptr()), of.nbytes());
  };
  to.add(bytes_of(pair.labels));
  const auto images = bytes_of(pair.images);
  constexpr std::size_t most = 4096;  // images that are read from a disk for it
  const auto count = static_cast<std::size_t>(pair.images.size(0));
  const auto each = images.size() / count;
  for (std::size_t i = 0; i < count; i += (count + most - 1) / most)
    add_image(to, images.subspan(i * each, each));
}

class safetensors_dataset final : public dataset {
 public:
  safetensors_dataset(std::string source, pair_of_tensors train, pair_of_tensors test)
      : source_(std::move(source)), train_(std::move(train)), test_(std::move(test)) {
    for (const auto* pair : {&train_, &test_}) {
      if (!pair->labels.defined()) continue;
      const auto* values = pair->labels.const_data_ptr<std::int64_t>();
      classes_ = std::max(classes_, *std::max_element(values, values + pair->labels.numel()) + 1);
    }
  }

  [[nodiscard]] std::int64_t size(split part) const override {
    const auto& labels = pair_of(part).labels;
    return labels.defined() ? labels.numel() : 0;
  }
  [[nodiscard]] std::int64_t classes() const override { return classes_; }
  [[nodiscard]] std::vector<std::int64_t> sample_shape() const override {
    return train_.images.sizes().slice(1).vec();
  }

  [[nodiscard]] result<batch> read(split part,
                                   std::span<const std::int64_t> indices) const override {
    return read_samples(source_, indices, size(part), [&] { return copy(part, indices); });
  }

  [[nodiscard]] result<std::string> digest() const override {
    running_digest sum(sample_digest_bytes);
    for (const auto* pair : {&train_, &test_}) add_pair(sum, *pair);
    return sum.digits();
  }

 private:
  [[nodiscard]] const pair_of_tensors& pair_of(split part) const {
    return part == split::train ? train_ : test_;
  }

  [[nodiscard]] batch copy(split part, std::span<const std::int64_t> indices) const {
    const auto& from = pair_of(part);
    auto copied = empty_batch(static_cast<std::int64_t>(indices.size()), sample_shape());
    if (indices.empty()) return copied;
    const auto values = from.images.numel() / from.images.size(0);
    const auto* images = from.images.const_data_ptr<float>();
    const auto* labels = from.labels.const_data_ptr<std::int64_t>();
    auto* to_image = copied.inputs.mutable_data_ptr<float>();
    auto* to_label = copied.labels.mutable_data_ptr<std::int64_t>();
    for (const auto index : indices) {
      to_image = std::copy_n(images + index * values, values, to_image);
      *to_label++ = labels[index];
    }
    return copied;
  }

  std::string source_;
  pair_of_tensors train_;
  pair_of_tensors test_;  // undefined where the file has no test split
  std::int64_t classes_ = 0;
};

result<pair_of_tensors> take_test_pair(const tensor_map& tensors, const pair_of_tensors& train) {
  if (!tensors.contains("test_images") && !tensors.contains("test_labels"))
    return pair_of_tensors{};
  auto test = take_pair(tensors, "test_");
  if (test && test->images.sizes().slice(1) != train.images.sizes().slice(1))
    return fail(errc::bad_data, "tensor \"test_images\" is " + shape_text(test->images) +
                                    ", but \"images\" is " + shape_text(train.images) +
                                    ": only the number of images may differ");
  return test;
}

}  // namespace

opened_dataset open_safetensors(const std::filesystem::path& file, const dataset_options& options) {
  auto loaded = load_safetensors(file);
  if (!loaded) return tl::unexpected(loaded.error());
  tensor_map tensors;
  for (auto& item : *loaded) tensors.emplace(std::move(item.name), std::move(item.tensor));
  auto train = take_pair(tensors, "");
  if (!train) return tl::unexpected(error_about(file.string(), train.error()));
  auto test = take_test_pair(tensors, *train);
  if (!test) return tl::unexpected(error_about(file.string(), test.error()));
  if (auto sound = check_fixed_size(options, train->images.size(2), train->images.size(3)); !sound)
    return tl::unexpected(sound.error());
  return std::make_unique<safetensors_dataset>(options.source, std::move(*train), std::move(*test));
}

}  // namespace troupe::engine
