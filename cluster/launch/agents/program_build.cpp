#include "cluster/launch/agents/program_build.hpp"

#include "engine/checksums/file_digest.hpp"

namespace troupe::cluster {
namespace {

result<std::string> digest_of_this() {
  constexpr std::size_t digest_bytes = 16;
  auto digest = engine::digest_of_file("/proc/self/exe", digest_bytes);
  if (!digest)
    return tl::unexpected(error_about("this program's own file cannot be read", digest.error()));
  return digest->digits;
}

}  // namespace

result<std::string> program_build() {
  static const auto known = digest_of_this();
  return known;
}

}  // namespace troupe::cluster
