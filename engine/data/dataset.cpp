#include "engine/data/dataset.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "engine/checksums/file_digest.hpp"
#include "engine/data/data_registry.hpp"
#include "engine/data/sampler.hpp"
#include "engine/data/sources.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::engine {
namespace {

constexpr std::int64_t largest_image_size = 16384;

result<void> check_options(const dataset_options& options) {
  if (options.image_size < 0 || options.image_size > largest_image_size)
    return fail(errc::bad_config, "image_size = " + std::to_string(options.image_size) +
                                      " is not 0 to " + std::to_string(largest_image_size));
  if (options.threads < 1)
    return fail(errc::bad_config,
                "threads = " + std::to_string(options.threads) + " is less than 1");
  return {};
}

std::vector<std::filesystem::path> paths_of(std::string_view list) {
  std::vector<std::filesystem::path> paths;
  for (std::size_t from = 0; from <= list.size();) {
    const auto comma = std::min(list.find(',', from), list.size());
    paths.emplace_back(list.substr(from, comma - from));
    from = comma + 1;
  }
  return paths;
}

// What a source that is none was probably meant to be: "folder:DIR"; empty: anything.
std::string probable_source(const std::string& source, std::string_view kind, std::string_view rest,
                            const data_registry& known) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path path(source);
  if (fs::is_directory(path, ignored)) return "folder:" + source;
  if (const auto meant = nearest(kind, known.names()))
    return std::string(*meant) + (rest.empty() ? "" : ":" + std::string(rest));
  if (path.extension() == ".safetensors") return "safetensors:" + source;
  if (fs::is_regular_file(path, ignored)) return "text:" + source;
  return source.find('/') != source.npos ? "folder:" + source : "";
}

std::string forms_of(const data_registry& known) {
  std::vector<std::string_view> forms;
  for (const auto& [name, source] : known) forms.push_back(source.form);
  return join(forms);
}

tl::unexpected<error> unknown_source(const std::string& source, std::string_view kind,
                                     std::string_view rest, const data_registry& known) {
  const auto meant = probable_source(source, kind, rest, known);
  return fail(errc::bad_config, "unknown data source \"" + source + "\"; " +
                                    (meant.empty() ? "" : "did you mean " + meant + "? ") +
                                    "known are: " + forms_of(known));
}

opened_dataset open_kind(std::string_view kind, std::string_view rest,
                         const dataset_options& options, const data_registry& known) {
  const auto* source = known.find(kind);
  if (source == nullptr) return unknown_source(options.source, kind, rest, known);
  const bool needs_rest = source->form.starts_with(std::string(kind) + ":");
  if (needs_rest && rest.empty())
    return fail(errc::bad_config, "the data source \"" + options.source +
                                      "\" is incomplete; known are: " + forms_of(known));
  return source->open(rest, options);
}

}  // namespace

std::vector<std::int64_t> told_of(const std::set<std::int64_t>& all) {
  const auto count = std::min(all.size(), most_left_out_told);
  return {all.begin(), std::next(all.begin(), static_cast<std::ptrdiff_t>(count))};
}

data_registry built_in_data() {
  using text = std::string_view;
  data_registry made;
  made.add("fashion-mnist", {"fashion-mnist[:DIR]", [](text rest, const dataset_options& options) {
                               return open_fashion_mnist(
                                   rest.empty() ? "/usr/share/datasets/fashion-mnist" : rest,
                                   options);
                             }});
  made.add("folder", {"folder:PATH", open_folder});
  made.add("safetensors", {"safetensors:PATH", open_safetensors});
  made.add("synthetic", {"synthetic:CxHxW:CLASSES[:COUNT]", open_synthetic});
  made.add("text", {"text[:PATH,..]", [](text rest, const dataset_options& options) {
                      return open_text(paths_of(rest.empty() ? "/usr/share/common-licenses" : rest),
                                       options);
                    }});
  return made;
}

opened_dataset open_dataset(const dataset_options& options) {
  return open_dataset(options, built_in_data());
}

opened_dataset open_dataset(const dataset_options& options, const data_registry& known) {
  if (auto sound = check_options(options); !sound) return tl::unexpected(sound.error());
  const std::string_view source = options.source;
  const auto colon = source.find(':');
  const auto rest = colon == source.npos ? std::string_view() : source.substr(colon + 1);
  return guarded(options.source,
                 [&] { return open_kind(source.substr(0, colon), rest, options, known); });
}

void add_number(running_digest& to, std::uint64_t number) {
  to.add(std::as_bytes(std::span(&number, 1)));
}

void add_text(running_digest& to, std::string_view text) {
  add_number(to, text.size());
  to.add(std::as_bytes(std::span(text)));
}

bool is_shortage(const std::error_code& why) {
  return why == std::errc::too_many_files_open || why == std::errc::too_many_files_open_in_system ||
         why == std::errc::not_enough_memory;
}

std::string remedy_of(const std::error_code& why) {
  if (why == std::errc::permission_denied) return "; give this user the right to read it";
  if (why == std::errc::too_many_files_open) return "; raise the limit on open files (ulimit -n)";
  return "";
}

batch empty_batch(std::int64_t count, const std::vector<std::int64_t>& sample_shape) {
  std::vector<std::int64_t> shape{count};
  shape.insert(shape.end(), sample_shape.begin(), sample_shape.end());
  return {at::empty(shape, at::TensorOptions().dtype(at::kFloat)),
          at::empty({count}, at::TensorOptions().dtype(at::kLong))};
}

result<void> check_indices(const std::string& source, std::span<const std::int64_t> indices,
                           std::int64_t size) {
  for (const auto index : indices)
    if (index < 0 || index >= size)
      return fail(errc::bad_data, source + ": sample " + std::to_string(index) +
                                      " is outside a split of " + std::to_string(size) +
                                      " samples");
  return {};
}

result<void> check_fixed_size(const dataset_options& options, std::int64_t height,
                              std::int64_t width) {
  const auto asked = options.image_size;
  if (asked == 0 || (asked == height && asked == width)) return {};
  return fail(errc::bad_config, options.source + ": image_size = " + std::to_string(asked) +
                                    ", but its images are used as they are, " +
                                    std::to_string(height) + "x" + std::to_string(width) +
                                    "; leave image_size out");
}

result<std::vector<batch>> split_batch(const batch& whole, std::int64_t microbatches) {
  const auto sizes = microbatch_sizes(whole.inputs.size(0), microbatches);
  if (!sizes) return tl::unexpected(sizes.error());
  return guarded("micro-batches", [&]() -> result<std::vector<batch>> {
    std::vector<batch> parts;
    std::int64_t begin = 0;
    for (const auto size : *sizes) {
      parts.push_back(
          {whole.inputs.narrow(0, begin, size),
           whole.labels.defined() ? whole.labels.narrow(0, begin, size) : at::Tensor()});
      begin += size;
    }
    return parts;
  });
}

}  // namespace troupe::engine
