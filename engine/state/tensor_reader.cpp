#include "engine/state/tensor_reader.hpp"

#include <ATen/ops/empty.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/base/bad_file.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/state/mapped_file.hpp"

namespace troupe::engine {
namespace {

constexpr std::uint64_t run_bytes = std::uint64_t{4} << 20;
constexpr std::uint64_t first_bytes = 64 << 10;  // more than most headers have

std::uint64_t elements_of(const safetensors_entry& of) {
  return (of.end - of.begin) / c10::elementSize(of.type);
}

std::int64_t modified_ns(const struct stat& about) {
  return about.st_mtim.tv_sec * 1'000'000'000 + about.st_mtim.tv_nsec;
}

}  // namespace

result<std::shared_ptr<const tensor_reader>> tensor_reader::open(
    const std::filesystem::path& file) {
  auto opened = open_to_read(file);
  if (!opened) return tl::unexpected(opened.error());
  std::shared_ptr<tensor_reader> made(new tensor_reader(file, std::move(*opened)));
  struct stat about {};
  if (::fstat(made->opened_->get(), &about) != 0)
    return bad_file(file,
                    std::string(unread_words) + "read: " + std::generic_category().message(errno));
  const auto file_bytes = static_cast<std::uint64_t>(about.st_size);
  auto front = read_front(file, *made->opened_, first_bytes);
  if (front)
    if (const auto all = front_bytes_of(*front, file_bytes); all > front->size())
      front = read_front(file, *made->opened_, all);
  if (!front) return tl::unexpected(front.error());
  auto header = parse_safetensors_header(*front, file_bytes);
  if (!header) return bad_file(file, header.error().text);
  made->header_ = std::move(*header);
  for (std::size_t i = 0; i < made->tensors().size(); ++i)
    made->places_.emplace(made->tensors()[i].name, i);
  const std::string_view text(reinterpret_cast<const char*>(front->data()),
                              made->header_.data_begin);
  made->identity_ = {.bytes = file_bytes,
                     .modified_ns = modified_ns(about),
                     .header_hash = std::hash<std::string_view>()(text)};
  return made;
}

std::shared_ptr<const tensor_reader> tensor_reader::with_name(const safetensors_entry& which,
                                                              const std::string& name) const {
  std::shared_ptr<tensor_reader> made(new tensor_reader(*this));
  auto& added = made->header_.tensors.emplace_back(which);
  added.name = name;
  made->places_.emplace(name, made->tensors().size() - 1);
  return made;
}

result<void> tensor_reader::check_unchanged() const {
  struct stat about {};
  if (::fstat(opened_->get(), &about) != 0)
    return bad_file(file_,
                    std::string(unread_words) + "read: " + std::generic_category().message(errno));
  const bool is_same = static_cast<std::uint64_t>(about.st_size) == identity_.bytes &&
                       modified_ns(about) == identity_.modified_ns;
  return is_same ? result<void>() : bad_file(file_, "was changed while it was to be read");
}

const safetensors_entry* tensor_reader::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &header_.tensors[found->second];
}

result<at::Tensor> tensor_reader::read(const safetensors_entry& which) const {
  return read_run(which, 0, elements_of(which)).map([&](const at::Tensor& flat) {
    return flat.view(which.shape);
  });
}

result<at::Tensor> tensor_reader::read_run(const safetensors_entry& which, std::uint64_t first,
                                           std::uint64_t count) const try {
  const auto flat =
      at::empty({static_cast<std::int64_t>(count)}, at::TensorOptions().dtype(which.type));
  const std::span into(static_cast<std::byte*>(flat.data_ptr()), flat.nbytes());
  const auto offset = header_.data_begin + which.begin + first * c10::elementSize(which.type);
  if (auto got = read_at(file_, *opened_, offset, into); !got) return tl::unexpected(got.error());
  // A byte other than 0 and 1 in a bool is undefined behaviour for whoever reads it.
  const auto is_bool = [](std::byte byte) { return byte <= std::byte{1}; };
  if (which.type == at::ScalarType::Bool && !std::ranges::all_of(into, is_bool))
    return bad_file(file_, "tensor \"" + which.name + "\" has a BOOL that is neither 0 nor 1");
  return flat;
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, file_.string() + " tensor \"" + which.name +
                                        "\" cannot be loaded: " + reason_of(problem));
}

result<void> tensor_reader::for_each_run(
    const safetensors_entry& which,
    const std::function<result<void>(const at::Tensor& run)>& take) const {
  const auto most = run_bytes / c10::elementSize(which.type);
  const auto all = elements_of(which);
  for (std::uint64_t first = 0; first < all; first += most) {
    const auto run = read_run(which, first, std::min(most, all - first));
    if (!run) return tl::unexpected(run.error());
    if (auto taken = take(*run); !taken) return taken;
  }
  return {};
}

tensor_place find_in(const tensor_files& files, const std::string& name) {
  for (const auto& file : files)
    if (const auto* const entry = file->find(name)) return {file.get(), entry};
  return {};
}

result<void> check_unchanged(const tensor_files& files) {
  for (const auto& file : files)
    if (auto same = file->check_unchanged(); !same) return same;
  return {};
}

result<tensor_stream> stream_of(const tensor_files& files, const std::vector<std::string>& names) {
  tensor_stream made;
  for (const auto& name : names) {
    const auto at = find_in(files, name);
    if (!at) return fail(errc::bad_data, "tensor \"" + name + "\" is in none of the files");
    made.forms.push_back({name, at.entry->type, at.entry->shape});
  }
  made.send = [files, names](const tensor_stream::taker& take) -> result<void> {
    for (const auto& name : names) {
      const auto [file, entry] = find_in(files, name);
      std::uint64_t first = 0;
      if (entry->begin == entry->end) {  // no run comes
        const auto none = at::empty({0}, at::TensorOptions().dtype(entry->type));
        if (auto taken = take(name, 0, none); !taken) return taken;
      }
      const auto sent = file->for_each_run(*entry, [&](const at::Tensor& run) {
        const auto at = std::exchange(first, first + static_cast<std::uint64_t>(run.numel()));
        return take(name, at, run);
      });
      if (!sent) return sent;
    }
    return {};
  };
  return made;
}

tensor_stream stream_of(std::shared_ptr<const tensor_reader> file) {
  std::vector<std::string> names;
  for (const auto& entry : file->tensors()) names.push_back(entry.name);
  return *stream_of(tensor_files{std::move(file)}, names);
}

}  // namespace troupe::engine
