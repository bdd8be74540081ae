#include "cluster/launch/start/copy_order.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "cluster/launch/start/retried.hpp"
#include "cluster/launch/start/write_all.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {
namespace {

constexpr std::size_t most_descriptors = sizeof(copy_order) / sizeof(int);

std::uint32_t append_all(std::string& to, char* const* words) {
  std::uint32_t count = 0;
  for (; words[count] != nullptr; ++count) to.append(words[count], std::strlen(words[count]) + 1);
  return count;
}

std::string text_of(const child_start& how) {
  order_text head;
  std::string words;
  head.arguments = append_all(words, how.arguments);
  head.entries = append_all(words, how.environment);
  head.has_folder = how.working_folder != nullptr;
  if (head.has_folder) words.append(how.working_folder, std::strlen(how.working_folder) + 1);
  head.bytes = words.size();
  head.parent = how.parent;
  for (int which = 0; which < static_cast<int>(RLIM_NLIMITS); ++which)
    ::getrlimit(static_cast<__rlimit_resource>(which), &head.limits[which]);
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + words;
}

/// One byte and the descriptors behind it.
struct message {
  char byte = 0;
  iovec bytes{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * most_descriptors)] = {};
  msghdr header{};

  explicit message(std::size_t count) {
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * count);
  }
  message(const message&) = delete;
  message& operator=(const message&) = delete;
};

}  // namespace

bool send_order(int socket, const child_start& how) {
  const descriptor text(::memfd_create("order", MFD_CLOEXEC));
  const descriptor folder(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!text || !folder || !write_all(text.get(), text_of(how))) return false;
  const copy_order order{.text = text.get(),
                         .folder = folder.get(),
                         .in = how.in,
                         .out = how.out,
                         .err = how.err,
                         .failure = how.failure,
                         .handed_over = how.handed_over};
  const std::size_t count = how.handed_over < 0 ? most_descriptors - 1 : most_descriptors;
  message sent(count);
  cmsghdr* const control = CMSG_FIRSTHDR(&sent.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof(int) * count);
  std::memcpy(CMSG_DATA(control), &order, sizeof(int) * count);
  return ::sendmsg(socket, &sent.header, MSG_NOSIGNAL) == 1;
}

std::optional<copy_order> receive_order(int socket) {
  message got(most_descriptors);
  if (retried([&] { return ::recvmsg(socket, &got.header, MSG_CMSG_CLOEXEC); }) <= 0)
    return std::nullopt;
  copy_order order;
  if (const cmsghdr* const control = CMSG_FIRSTHDR(&got.header))
    std::memcpy(&order, CMSG_DATA(control),
                std::min(sizeof order, control->cmsg_len - CMSG_LEN(0)));
  return order;
}

void close_order(const copy_order& order) noexcept {
  for (const int each :
       {order.text, order.folder, order.in, order.out, order.err, order.failure, order.handed_over})
    if (each >= 0) ::close(each);
}

}  // namespace troupe::cluster
