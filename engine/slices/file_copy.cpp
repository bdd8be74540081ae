#include "engine/slices/file_copy.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <span>
#include <system_error>
#include <utility>

#include "engine/slices/file_faults.hpp"
#include "engine/slices/slice_folder.hpp"
#include "engine/state/mapped_file.hpp"

namespace troupe::engine {

result<at::Tensor> read_bytes(const std::filesystem::path& file, std::uint64_t first,
                              std::uint64_t most) {
  const auto opened = open_to_read(file);
  if (!opened) return tl::unexpected(opened.error());
  std::error_code why;
  const auto all = std::filesystem::file_size(file, why);
  if (why || first > all)
    return fail(errc::bad_data, file.string() + " has no byte " + std::to_string(first));
  auto made = at::empty({static_cast<std::int64_t>(std::min(most, all - first))}, at::kByte);
  const std::span bytes(static_cast<std::byte*>(made.mutable_data_ptr()), made.nbytes());
  if (auto read = read_at(file, *opened, first, bytes); !read) return tl::unexpected(read.error());
  return made;
}

result<std::unique_ptr<file_copy>> file_copy::open(const std::filesystem::path& file,
                                                   const file_sums& wanted) {
  if (auto made = make_synced_folder(file.parent_path()); !made)
    return tl::unexpected(made.error());
  auto out = atomic_file::create(file);
  if (!out) return tl::unexpected(out.error());
  return std::unique_ptr<file_copy>(new file_copy(file, wanted, std::move(*out)));
}

result<void> file_copy::add(std::uint64_t first, const at::Tensor& bytes) {
  const bool fits = bytes.defined() && bytes.dim() == 1 && bytes.scalar_type() == at::kByte &&
                    bytes.is_contiguous() && first == next_ && bytes.numel() > 0 &&
                    bytes.nbytes() <= wanted_.bytes - next_;
  if (!fits)
    return fail(errc::bad_frame, file_.string() + ": a piece of it came that was not asked for");
  const auto* const from = static_cast<const std::byte*>(bytes.const_data_ptr());
  if (auto written = out_->write({from, bytes.nbytes()}); !written) return written;
  next_ += bytes.nbytes();
  return {};
}

result<void> file_copy::finish() {
  if (auto done = out_->commit(); !done) return done;
  const auto length = find_length_fault(file_, wanted_.bytes);
  const auto faults = length ? std::vector{*length} : find_altered(file_, wanted_);
  if (faults.empty()) return {};
  std::error_code why;
  std::filesystem::remove(file_, why);
  return fail(errc::bad_data, file_.string() + ' ' + faults.front().what);
}

}  // namespace troupe::engine
