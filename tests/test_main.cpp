/// \file
/// The main function of the test programs. It ends a program without the destructors of globals:
/// those of LibTorch take a third as long as loading it, in each of a thousand processes.
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include <catch2/catch_session.hpp>

int main(int count, char** arguments) {
  const int code = Catch::Session().run(count, arguments);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return code;  // leaks are looked for at the end
#else
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
#endif
}
