#include <elf.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <openssl/crypto.h>
#include <sodium.h>
#include <sys/utsname.h>

#include <torch/version.h>
#include <algorithm>
#include <caf/config.hpp>
#include <cstring>
#include <span>

#include "cluster/doctor/host/examine_host.hpp"
#include "cluster/launch/agents/agent_messages.hpp"
#include "cluster/launch/agents/program_build.hpp"
#include "messages/base/printable.hpp"
#include "messages/codec/version.hpp"
#include "messages/frame.hpp"
#include "messages/link/ucx/version.hpp"

namespace troupe::cluster::doctor {
namespace {

constexpr std::size_t round_up(std::size_t size) {
  return (size + 3) / 4 * 4;
}

/// The build id in a segment of notes; empty: it has none.
std::string build_id_in(const char* notes, std::size_t bytes) {
  constexpr std::size_t most_bytes = 8;  // enough to tell builds apart
  for (const char* const end = notes + bytes; notes + sizeof(ElfW(Nhdr)) <= end;) {
    ElfW(Nhdr) head;
    std::memcpy(&head, notes, sizeof head);
    const char* const name = notes + sizeof head;
    const char* const value = name + round_up(head.n_namesz);
    if (value + head.n_descsz > end) return "";
    if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0)
      return to_hexadecimal(
          std::as_bytes(std::span(value, std::min<std::size_t>(head.n_descsz, most_bytes))));
    notes = value + round_up(head.n_descsz);
  }
  return "";
}

int note_library(dl_phdr_info* info, std::size_t, void* into) {
  const std::string path = info->dlpi_name;
  const bool is_of_kernel = path.starts_with("linux-vdso");
  if (is_of_kernel || path.find(".so") == std::string::npos) return 0;  // as the program itself
  auto& id =
      (*static_cast<std::map<std::string, std::string>*>(into))[path.substr(path.rfind('/') + 1)];
  for (int i = 0; i < info->dlpi_phnum && id.empty(); ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type == PT_NOTE)
      id = build_id_in(reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr),
                       segment.p_memsz);
  }
  return 0;
}

std::string caf_version() {
  return std::to_string(CAF_VERSION / 10000) + "." + std::to_string(CAF_VERSION / 100 % 100) + "." +
         std::to_string(CAF_VERSION % 100);
}

}  // namespace

void examine_versions(host_facts& out) {
  utsname system{};
  if (::uname(&system) == 0) out.versions["Linux"] = system.release;
  const auto build = program_build();
  out.versions["build"] = build ? build->substr(0, 16) : "unknown";
  out.versions["agent protocol"] = std::to_string(agent_protocol_version);
  out.versions["frame protocol"] = std::to_string(messages::protocol_version);
  out.versions["CAF"] = caf_version();
  out.versions["Cap'n Proto"] = messages::codec_library_version();
  out.versions["LibTorch"] = TORCH_VERSION;
  out.versions["OpenSSL"] = OpenSSL_version(OPENSSL_VERSION_STRING);
  out.versions["UCX"] = messages::ucx::library_version();
  out.versions["glibc"] = ::gnu_get_libc_version();
  out.versions["libsodium"] = ::sodium_version_string();
  ::dl_iterate_phdr(&note_library, &out.libraries);
}

}  // namespace troupe::cluster::doctor
