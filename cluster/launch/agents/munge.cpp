#include "cluster/launch/agents/munge.hpp"

#include <dlfcn.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

namespace troupe::cluster {
namespace {

// As munge.h has them, which has not changed since 2004. The library is loaded and not linked, so
// that hosts without it run everything but this.
using context = void*;
constexpr int option_user_alone = 9;  // MUNGE_OPT_UID_RESTRICTION

struct munge_library {
  context (*make)();
  void (*destroy)(context);
  int (*set)(context, int option, ...);
  const char* (*last_error)(context);
  const char* (*error_text)(int);
  int (*encode)(char** credential, context, const void* payload, int bytes);
  int (*decode)(const char* credential, context, void** payload, int* bytes, uid_t*, gid_t*);
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

/// Never unloaded: nothing is gained by it.
result<munge_library> load() {
  void* const file = ::dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL);
  munge_library all{};
  const bool whole =
      file != nullptr && find(file, "munge_ctx_create", all.make) &&
      find(file, "munge_ctx_destroy", all.destroy) && find(file, "munge_ctx_set", all.set) &&
      find(file, "munge_ctx_strerror", all.last_error) &&
      find(file, "munge_strerror", all.error_text) && find(file, "munge_encode", all.encode) &&
      find(file, "munge_decode", all.decode);
  if (whole) return all;
  return fail(errc::io_failed,
              "munge's library (libmunge.so.2) is not on this host; install munge there, or set "
              "stream = \"none\" in [cluster]");
}

struct free_memory {
  void operator()(void* memory) const { std::free(memory); }
};
using munge_context = std::unique_ptr<void, void (*)(context)>;

error failure(const munge_library& munge, context at, int code) {
  const char* const told = at == nullptr ? nullptr : munge.last_error(at);
  return {errc::io_failed,
          "munge: " + std::string(told != nullptr ? told : munge.error_text(code)) +
              "; see that munged runs on this host with the cluster's key"};
}

result<std::string> vouch(const munge_library& munge, const std::string& statement) {
  const munge_context with(munge.make(), munge.destroy);
  if (!with) return fail(errc::io_failed, "munge: no memory is left");
  munge.set(with.get(), option_user_alone, ::geteuid());
  char* made = nullptr;
  const int code =
      munge.encode(&made, with.get(), statement.data(), static_cast<int>(statement.size()));
  const std::unique_ptr<char, free_memory> credential(made);
  if (code != 0) return tl::unexpected(failure(munge, with.get(), code));
  return std::string(credential.get());
}

result<std::string> check(const munge_library& munge, const std::string& credential) {
  const munge_context with(munge.make(), munge.destroy);
  if (!with) return fail(errc::io_failed, "munge: no memory is left");
  void* made = nullptr;
  int bytes = 0;
  uid_t user = 0;
  gid_t group = 0;
  const int code = munge.decode(credential.c_str(), with.get(), &made, &bytes, &user, &group);
  const std::unique_ptr<void, free_memory> payload(made);
  if (code != 0) return tl::unexpected(failure(munge, with.get(), code));
  if (user != ::geteuid())
    return fail(errc::bad_frame,
                "a credential of another user, with the number " + std::to_string(user));
  return std::string(static_cast<const char*>(payload.get()), static_cast<std::size_t>(bytes));
}

}  // namespace

result<stream_witness> munge_witness() {
  const auto munge = load();
  if (!munge) return tl::unexpected(munge.error());
  return stream_witness{
      .vouch = [munge = *munge](const std::string& text) { return vouch(munge, text); },
      .check = [munge = *munge](const std::string& text) { return check(munge, text); }};
}

}  // namespace troupe::cluster
