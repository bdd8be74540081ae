#include "engine/state/safetensors.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "engine/state/atomic_file.hpp"
#include "engine/state/safetensors_header.hpp"

namespace troupe::engine {
namespace {

tl::unexpected<error> bad_file(const std::filesystem::path& file, const std::string& what) {
  return fail(errc::bad_data, file.string() + " " + what);
}

// A whole file in memory. Private and writable: a parameter loaded from it may be updated in place.
class mapping {
 public:
  mapping(void* bytes, std::size_t size) : bytes_(bytes), size_(size) {}
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;
  ~mapping() {
    if (size_ > 0) ::munmap(bytes_, size_);
  }

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(bytes_); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data(), size_}; }

 private:
  void* bytes_;
  std::size_t size_;
};

result<std::shared_ptr<mapping>> map_descriptor(const std::filesystem::path& file, int descriptor) {
  struct stat about {};
  if (::fstat(descriptor, &about) != 0)
    return bad_file(file, "cannot be read: " + std::generic_category().message(errno));
  if (!S_ISREG(about.st_mode)) return bad_file(file, "is not a file");
  const auto size = static_cast<std::size_t>(about.st_size);
  if (size == 0) return std::make_shared<mapping>(nullptr, 0);
  void* bytes =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
  if (bytes == MAP_FAILED)
    return bad_file(file, "cannot be mapped: " + std::generic_category().message(errno));
  return std::make_shared<mapping>(bytes, size);
}

result<std::shared_ptr<mapping>> map_file(const std::filesystem::path& file) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0)
    return bad_file(file, "cannot be opened: " + std::generic_category().message(errno));
  auto mapped = map_descriptor(file, descriptor);
  ::close(descriptor);
  return mapped;
}

struct opened_file {
  std::shared_ptr<mapping> mapped;
  safetensors_header header;
};

result<opened_file> open_safetensors(const std::filesystem::path& file) {
  auto mapped = map_file(file);
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

std::optional<std::string> unfit(const named_tensor& item, std::set<std::string>& names) {
  const auto& [name, tensor] = item;
  if (name == "__metadata__") return "has the one name that the format keeps for itself";
  if (!names.insert(name).second) return "is given twice";
  if (!tensor.defined()) return "is undefined";
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) return "is sparse or quantised";
  if (!safetensors_type_name(tensor.scalar_type()))
    return std::string("has the type ") + c10::toString(tensor.scalar_type()) +
           ", which safetensors files cannot hold here";
  return std::nullopt;
}

// The order of the bytes: wide types first, so that every tensor is aligned without padding.
std::vector<std::size_t> byte_order(const std::vector<named_tensor>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&tensors](std::size_t left, std::size_t right) {
    return tensors[left].tensor.element_size() > tensors[right].tensor.element_size();
  });
  return order;
}

safetensors_header header_for(const std::vector<named_tensor>& tensors,
                              const std::vector<std::size_t>& order) {
  safetensors_header header;
  for (const auto& [name, tensor] : tensors)
    header.tensors.push_back({name, tensor.scalar_type(), tensor.sizes().vec(), 0, 0});
  std::uint64_t at = 0;
  for (const auto index : order) {
    header.tensors[index].begin = at;
    at += tensors[index].tensor.nbytes();
    header.tensors[index].end = at;
  }
  return header;
}

result<void> save(const std::filesystem::path& file, const std::vector<named_tensor>& tensors) {
  std::set<std::string> names;
  for (const auto& item : tensors)
    if (auto problem = unfit(item, names))
      return fail(errc::bad_data,
                  "cannot save " + file.string() + ": tensor \"" + item.name + "\" " + *problem);
  const auto order = byte_order(tensors);
  const auto header = format_safetensors_header(header_for(tensors, order));
  auto out = atomic_file::create(file);
  if (!out) return tl::unexpected(out.error());
  auto written = (*out)->write(std::as_bytes(std::span(header)));
  for (std::size_t i = 0; written && i < order.size(); ++i) {
    // One tensor at a time: a model on a device never needs a second copy of itself here.
    const auto bytes = tensors[order[i]].tensor.detach().cpu().resolve_neg().contiguous();
    written =
        (*out)->write({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
  return written ? (*out)->commit() : written;
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

result<void> save_safetensors(const std::filesystem::path& file,
                              const std::vector<named_tensor>& tensors) {
  try {
    return save(file, tensors);
  } catch (const std::exception& problem) {
    return fail(errc::bad_data, "cannot save " + file.string() + ": " + problem.what());
  }
}

}  // namespace troupe::engine
