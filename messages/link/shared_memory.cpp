#include "messages/link/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "messages/link/cluster_secret.hpp"

namespace troupe::messages {
namespace {

constexpr std::uint64_t page = 4096;
// Nobody can shrink what we have mapped, which would end us with SIGBUS, or write what we lend.
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

tl::unexpected<error> cannot(const char* what) {
  return fail(errc::io_failed, fmt::format("{}: {}", what, std::strerror(errno)));
}

bool has_ended(int process) {
  pollfd state{process, POLLIN, 0};
  return ::poll(&state, 1, 0) > 0;
}

}  // namespace

result<std::shared_ptr<shared_memory>> shared_memory::make() {
  memory_location where;
  where.process = static_cast<std::uint64_t>(::getpid());
  where.bytes = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  fill_random(where.mark);
  descriptor file(::memfd_create("troupe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(where.bytes)) != 0)
    return cannot("no memory that can be shared");
  void* const data = ::mmap(nullptr, where.bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (data == MAP_FAILED) return cannot("cannot map memory that can be shared");
  where.descriptor = file.get();
  std::shared_ptr<shared_memory> out(
      new shared_memory(std::move(file), static_cast<std::byte*>(data), where));
  if (::fcntl(where.descriptor, F_ADD_SEALS, seals) != 0)
    return cannot("cannot seal memory that can be shared");
  return out;
}

shared_memory::shared_memory(descriptor file, std::byte* data, const memory_location& location)
    : file_(std::move(file)), data_(data), location_(location) {
  std::ranges::copy(location_.mark, data_);
  free_.emplace(page, location_.bytes - page);
  ::madvise(data_, location_.bytes, MADV_DONTFORK);  // a child would take the same blocks
  ::madvise(data_, location_.bytes, MADV_HUGEPAGE);  // where the machine allows it
}

shared_memory::~shared_memory() {
  ::munmap(data_, location_.bytes);
}

payload shared_memory::allocate(std::size_t bytes) {
  drop_orphans();
  const auto offset = bytes == 0 ? std::nullopt : take_block((bytes + page - 1) / page * page);
  if (!offset) return {};
  std::shared_ptr<void> owner(data_ + *offset, [self = shared_from_this()](void* block) {
    self->free_block(static_cast<std::uint64_t>(static_cast<std::byte*>(block) - self->data_));
  });
  return {.data = data_ + *offset, .bytes = bytes, .owner = std::move(owner)};
}

std::optional<std::uint64_t> shared_memory::take_block(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  // The smallest that fits: blocks of the same sizes come again and again, and the never touched
  // rest is the largest.
  auto best = free_.end();
  for (auto block = free_.begin(); block != free_.end(); ++block) {
    if (block->second >= bytes && (best == free_.end() || block->second < best->second))
      best = block;
  }
  if (best == free_.end()) return std::nullopt;
  const auto [offset, room] = *best;
  free_.erase(best);
  if (room > bytes) free_.emplace(offset + bytes, room - bytes);
  taken_.emplace(offset, bytes);
  return offset;
}

void shared_memory::free_block(std::uint64_t offset) {
  const std::lock_guard lock(mutex_);
  auto [block, added] = free_.emplace(offset, taken_.extract(offset).mapped());
  if (const auto next = std::next(block);
      next != free_.end() && block->first + block->second == next->first) {
    block->second += next->second;
    free_.erase(next);
  }
  if (block == free_.begin()) return;
  const auto before = std::prev(block);
  if (before->first + before->second != block->first) return;
  before->second += block->second;
  free_.erase(block);
}

std::optional<std::uint64_t> shared_memory::offset_of(const payload& bytes) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data);
  const auto base = reinterpret_cast<std::uintptr_t>(data_);
  if (begin < base || begin - base >= location_.bytes) return std::nullopt;
  return begin - base;
}

void shared_memory::keep_until_end(const std::shared_ptr<descriptor>& process,
                                   std::vector<payload> lent) {
  const std::lock_guard lock(mutex_);
  orphans_.push_back({process, std::move(lent)});
}

void shared_memory::drop_orphans() {
  std::vector<orphans> over;  // blocks are freed without the lock
  const std::lock_guard lock(mutex_);
  const auto last = std::ranges::partition(
      orphans_, [](const orphans& each) { return !has_ended(each.process->get()); });
  std::ranges::move(last, std::back_inserter(over));
  orphans_.erase(last.begin(), last.end());
}

result<std::shared_ptr<borrowed_memory>> borrowed_memory::open(const memory_location& where) {
  // First hold on to the process, then look whether it is the right one: its number could pass on
  // to another at any time.
  // The C library's header does not declare pidfd_open for C++.
  const auto pidfd = ::syscall(SYS_pidfd_open, static_cast<pid_t>(where.process), 0U);
  auto process = std::make_shared<descriptor>(static_cast<int>(pidfd));
  if (!*process) return cannot("cannot hold on to the peer's process");
  const auto path = fmt::format("/proc/{}/fd/{}", where.process, where.descriptor);
  const descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return cannot("cannot open the peer's memory");
  struct stat status {};
  const int sealed = ::fcntl(file.get(), F_GET_SEALS);
  if (::fstat(file.get(), &status) != 0 || sealed < 0 || (sealed & F_SEAL_SHRINK) == 0 ||
      static_cast<std::uint64_t>(status.st_size) != where.bytes || where.bytes < page)
    return fail(errc::io_failed, "the peer's memory is not what it says");
  void* const data =
      ::mmap(nullptr, where.bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (data == MAP_FAILED) return cannot("cannot map the peer's memory");
  std::shared_ptr<borrowed_memory> out(
      new borrowed_memory(static_cast<const std::byte*>(data), where.bytes, std::move(process)));
  if (std::memcmp(data, where.mark.data(), where.mark.size()) != 0)
    return fail(errc::io_failed, "the peer's memory bears another mark");
  return out;
}

borrowed_memory::~borrowed_memory() {
  ::munmap(const_cast<std::byte*>(data_), bytes_);
}

}  // namespace troupe::messages
