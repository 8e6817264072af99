// A page without a server has its answers here; see robustnmf.view.write_page.
