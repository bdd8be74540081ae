#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "engine/data/dataset.hpp"

namespace troupe::engine {

class running_digest;

// What the sources share, and one function for each that opens it. `open_dataset` chooses and turns
// exceptions into errors.

using opened_dataset = result<std::unique_ptr<dataset>>;

[[nodiscard]] opened_dataset open_fashion_mnist(const std::filesystem::path& folder,
                                                const dataset_options& options);
[[nodiscard]] opened_dataset open_folder(const std::filesystem::path& folder,
                                         const dataset_options& options);
[[nodiscard]] opened_dataset open_safetensors(const std::filesystem::path& file,
                                              const dataset_options& options);
/// `shape` is what follows "synthetic:".
[[nodiscard]] opened_dataset open_synthetic(std::string_view shape, const dataset_options& options);

/// Files, and folders of files; each counts once.
[[nodiscard]] opened_dataset open_text(const std::vector<std::filesystem::path>& paths,
                                       const dataset_options& options);

/// A batch for `count` samples of [C, H, W] whose values are yet to be written.
[[nodiscard]] batch empty_batch(std::int64_t count, const std::vector<std::int64_t>& sample_shape);

/// bad_data, naming the source, where an index is outside 0 .. size - 1.
[[nodiscard]] result<void> check_indices(const std::string& source,
                                         std::span<const std::int64_t> indices, std::int64_t size);

/// bad_config where the user asks for another size than images that are used as they are have.
[[nodiscard]] result<void> check_fixed_size(const dataset_options& options, std::int64_t height,
                                            std::int64_t width);

/// Of dataset::digest.
inline constexpr std::size_t sample_digest_bytes = 16;

/// Adds to a digest a number, or a text with its length, so that no two lists look the same.
void add_number(running_digest& to, std::uint64_t number);
void add_text(running_digest& to, std::string_view text);

/// Whether this process lacks something, for which no file can be blamed.
[[nodiscard]] bool is_shortage(const std::error_code& why);

/// "; raise the limit on open files (ulimit -n)": what to do about the system's refusal to open a
/// file or folder; empty where its reason says it.
[[nodiscard]] std::string remedy_of(const std::error_code& why);

/// Runs `work` and turns what it throws into an error that names the source.
template <class Work>
auto guarded(const std::string& source, Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::filesystem::filesystem_error& problem) {
    return fail(errc::io_failed, source + ": " + problem.path1().string() + " cannot be read: " +
                                     problem.code().message() + remedy_of(problem.code()));
  } catch (const std::system_error& problem) {
    return fail(errc::io_failed, source + ": " + problem.what());
  } catch (const std::exception& problem) {
    return fail(errc::handler_failed, source + ": " + problem.what());
  }
}

/// How every source reads: refuses indices that `size` samples do not have, and turns what `fill`
/// throws into an error that names the source.
template <class Fill>
result<batch> read_samples(const std::string& source, std::span<const std::int64_t> indices,
                           std::int64_t size, Fill fill) {
  if (auto sound = check_indices(source, indices, size); !sound)
    return tl::unexpected(sound.error());
  return guarded(source, [&]() -> result<batch> { return fill(); });
}

}  // namespace troupe::engine
