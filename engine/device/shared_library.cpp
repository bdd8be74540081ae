#include "engine/device/shared_library.hpp"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "messages/base/format.hpp"

namespace troupe::engine {
namespace {

/// How many bytes the file must have for what its header promises; 0: it is no 64-bit ELF file, of
/// which the loader says more.
std::uint64_t promised_bytes(std::ifstream& file) {
  Elf64_Ehdr header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header)) return 0;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr))
    return 0;
  std::uint64_t most =
      header.e_shoff + static_cast<std::uint64_t>(header.e_shnum) * header.e_shentsize;
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  file.seekg(static_cast<std::streamoff>(header.e_phoff));
  file.read(reinterpret_cast<char*>(segments.data()),
            static_cast<std::streamsize>(segments.size() * sizeof(Elf64_Phdr)));
  for (const Elf64_Phdr& each : segments) most = std::max(most, each.p_offset + each.p_filesz);
  return most;
}

result<void> check_whole(const std::string& path) {
  std::error_code unknown;
  const std::uint64_t bytes = std::filesystem::file_size(path, unknown);
  std::ifstream file(path, std::ios::binary);
  if (unknown || !file) return {};  // the loader says why
  const std::uint64_t promised = promised_bytes(file);
  if (promised <= bytes) return {};
  return fail(errc::transport_missing, format("%s is incomplete: %llu bytes of %llu are there",
                                              path.c_str(), static_cast<unsigned long long>(bytes),
                                              static_cast<unsigned long long>(promised)));
}

}  // namespace

result<void*> load_library(const std::string& name, bool globally) {
  if (name.find('/') != std::string::npos)
    if (auto whole = check_whole(name); !whole) return tl::unexpected(whole.error());
  void* const library = dlopen(name.c_str(), (globally ? RTLD_GLOBAL : RTLD_LOCAL) | RTLD_NOW);
  if (library != nullptr) return library;
  const char* const reason = dlerror();
  return fail(errc::transport_missing, reason == nullptr ? name + ": unknown reason" : reason);
}

}  // namespace troupe::engine
