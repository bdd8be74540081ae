#include "engine/state/safetensors.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "engine/base/bad_file.hpp"
#include "engine/state/mapped_file.hpp"
#include "engine/state/safetensors_header.hpp"

namespace troupe::engine {
namespace {

struct opened_file {
  std::shared_ptr<mapped_file> mapped;
  safetensors_header header;
};

result<opened_file> open_safetensors(const std::filesystem::path& file) {
  const auto opened = open_to_read(file);
  if (!opened) return tl::unexpected(opened.error());
  auto mapped = mapped_file::map(file, *opened);
  if (!mapped) return tl::unexpected(mapped.error());
  auto header = parse_safetensors_header((*mapped)->bytes());
  if (!header) return bad_file(file, header.error().text);
  return opened_file{std::move(*mapped), std::move(*header)};
}

// A byte other than 0 and 1 in a bool is undefined behaviour for whoever reads it.
bool holds_bools(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte <= std::byte{1}; });
}

at::Tensor tensor_at(const opened_file& opened, const safetensors_entry& entry) {
  const auto options = at::TensorOptions().dtype(entry.type);
  auto* bytes = opened.mapped->data() + opened.header.data_begin + entry.begin;
  const auto size = static_cast<std::size_t>(entry.end - entry.begin);
  const auto aligned = reinterpret_cast<std::uintptr_t>(bytes) % c10::elementSize(entry.type) == 0;
  if (size > 0 && aligned)
    return at::from_blob(
        bytes, entry.shape, [held = opened.mapped](void*) {}, options);
  auto copy = at::empty(entry.shape, options);
  if (size > 0) std::memcpy(copy.data_ptr(), bytes, size);
  return copy;
}

result<std::vector<named_tensor>> tensors_of(const std::filesystem::path& file,
                                             const opened_file& opened) {
  std::vector<named_tensor> tensors;
  const auto data = opened.mapped->bytes().subspan(opened.header.data_begin);
  for (const auto& entry : opened.header.tensors) {
    if (entry.type == at::ScalarType::Bool &&
        !holds_bools(data.subspan(entry.begin, entry.end - entry.begin)))
      return bad_file(file, "tensor \"" + entry.name + "\" has a BOOL that is neither 0 nor 1");
    tensors.push_back({entry.name, tensor_at(opened, entry)});
  }
  return tensors;
}

std::optional<std::string> unfit(const tensor_form& item, std::set<std::string>& names) {
  if (item.name == "__metadata__") return "has the one name that the format keeps for itself";
  if (!names.insert(item.name).second) return "is given twice";
  if (!safetensors_type_name(item.type))
    return std::string("has the type ") + c10::toString(item.type) +
           ", which safetensors files cannot hold here";
  return std::nullopt;
}

// The bytes of wide types first, so that every tensor is aligned without padding.
safetensors_header header_for(const std::vector<tensor_form>& forms) {
  safetensors_header header;
  std::vector<std::size_t> order(forms.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(),
                           [&](std::size_t i) { return c10::elementSize(forms[i].type); });
  for (const auto& [name, type, shape] : forms) header.tensors.push_back({name, type, shape, 0, 0});
  std::uint64_t at = 0;
  for (const auto index : order) {
    auto& entry = header.tensors[index];
    entry.begin = at;
    at += static_cast<std::uint64_t>(c10::multiply_integers(entry.shape)) *
          c10::elementSize(entry.type);
    entry.end = at;
  }
  return header;
}

std::uint64_t end_of_data(const safetensors_header& header) {
  std::uint64_t end = 0;
  for (const auto& entry : header.tensors) end = std::max(end, entry.end);
  return end;
}

// Puts tensors where the header says, in whatever order they come.
class data_writer {
 public:
  data_writer(atomic_file& out, const safetensors_header& header, std::uint64_t data_begin)
      : out_(out), data_begin_(data_begin) {
    for (const auto& entry : header.tensors)
      open_.emplace(entry.name, open_tensor{.entry = &entry});
  }

  result<void> put(const std::string& name, std::uint64_t first, const at::Tensor& run) {
    const auto found = open_.find(name);
    if (found == open_.end()) return wrong(name, "was not announced");
    auto& [entry, next] = found->second;
    const auto bytes = run.detach().cpu().resolve_neg().contiguous();
    const auto begin = entry->begin + first * bytes.element_size();
    if (bytes.scalar_type() != entry->type || begin != entry->begin + next ||
        begin + bytes.nbytes() > entry->end)
      return wrong(name, "is not what was announced");
    next += bytes.nbytes();
    return out_.write_at(data_begin_ + begin,
                         {static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  }

  [[nodiscard]] result<void> check_complete() const {
    for (const auto& [name, tensor] : open_)
      if (tensor.next != tensor.entry->end - tensor.entry->begin)
        return wrong(name, "did not come whole");
    return {};
  }

 private:
  struct open_tensor {
    const safetensors_entry* entry;
    std::uint64_t next = 0;  // byte
  };

  static tl::unexpected<error> wrong(const std::string& name, const std::string& why) {
    return fail(errc::bad_data, "tensor \"" + name + "\" " + why);
  }

  atomic_file& out_;
  std::uint64_t data_begin_;
  std::unordered_map<std::string, open_tensor> open_;
};

result<void> save(const std::filesystem::path& file, const tensor_stream& tensors, durability how) {
  std::set<std::string> names;
  for (const auto& item : tensors.forms)
    if (auto problem = unfit(item, names))
      return fail(errc::bad_data,
                  "cannot save " + file.string() + ": tensor \"" + item.name + "\" " + *problem);
  const auto header = header_for(tensors.forms);
  const auto text = format_safetensors_header(header);
  auto out = atomic_file::create(file);
  if (!out) return tl::unexpected(out.error());
  (*out)->reserve(text.size() + end_of_data(header));
  if (auto begun = (*out)->write_at(0, std::as_bytes(std::span(text))); !begun) return begun;
  data_writer data(**out, header, text.size());
  const auto sent = tensors.send([&](const auto& name, std::uint64_t first, const auto& run) {
    return data.put(name, first, run);
  });
  if (!sent) return sent;
  if (auto complete = data.check_complete(); !complete) return complete;
  return (*out)->commit(how);
}

std::optional<std::string> unreadable(const at::Tensor& tensor) {
  if (!tensor.defined()) return "is undefined";
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) return "is sparse or quantised";
  return std::nullopt;
}

}  // namespace

result<std::vector<named_tensor>> load_safetensors(const std::filesystem::path& file) {
  try {
    const auto opened = open_safetensors(file);
    if (!opened) return tl::unexpected(opened.error());
    return tensors_of(file, *opened);
  } catch (const std::exception& problem) {
    return bad_file(file, std::string("cannot be loaded: ") + problem.what());
  }
}

result<void> save_safetensors(const std::filesystem::path& file, const tensor_stream& tensors,
                              durability how) {
  try {
    return save(file, tensors, how);
  } catch (const std::exception& problem) {
    return fail(errc::bad_data, "cannot save " + file.string() + ": " + problem.what());
  }
}

result<void> save_safetensors(const std::filesystem::path& file,
                              const std::vector<named_tensor>& tensors) {
  for (const auto& [name, tensor] : tensors)
    if (const auto problem = unreadable(tensor))
      return fail(errc::bad_data,
                  "cannot save " + file.string() + ": tensor \"" + name + "\" " + *problem);
  return save_safetensors(file, stream_of(tensors));
}

tensor_form form_of(const named_tensor& of) {
  return {of.name, of.tensor.scalar_type(), of.tensor.sizes().vec()};
}

tensor_stream stream_of(const std::vector<named_tensor>& tensors) {
  tensor_stream made;
  for (const auto& each : tensors) made.forms.push_back(form_of(each));
  made.send = [tensors](const tensor_stream::taker& take) -> result<void> {
    for (const auto& [name, tensor] : tensors)
      if (auto taken = take(name, 0, tensor); !taken) return taken;
    return {};
  };
  return made;
}

}  // namespace troupe::engine
